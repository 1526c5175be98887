"""Checkpoints: what there is, whether the files are whole, and conversions to and from other formats.

  zerocourse checkpoint ls runs/
  zerocourse checkpoint verify runs/global_step500
  zerocourse checkpoint convert runs/global_step500 weights/ --dtype bfloat16
  zerocourse checkpoint convert deepspeed_runs/global_step500 runs/global_step500 --to zerocourse

`convert` writes the weights as safetensors, which Hugging Face's from_pretrained reads beside a config.json. It reads
our checkpoints and those of DeepSpeed's ZeRO, and of the latter it also makes one of ours (--to zerocourse), with the
optimizer. All of them check what they read. `ls` names broken checkpoints beside the others, and `verify` what is wrong in
one: exit status 1.
"""

from pathlib import Path

from ..errors import BadInput
from ..formulas.units import gb
from . import Outcome
from .arguments import Checked, check_folder, path, refuse_ignored, size

HELP = "list checkpoints, verify their files, convert them"
ACTIONS, FORMATS = ("ls", "verify", "convert"), ("safetensors", "zerocourse")
DTYPES = ("float32", "bfloat16", "float16")


def configure(parser):
    parser.add_argument("action", choices=ACTIONS, help="ls: what is in a folder; verify: read every byte; convert: write OUT")
    parser.add_argument("path", action=Checked, read=path, metavar="PATH", help="a checkpoint, or for ls a folder of them")
    parser.add_argument("out", nargs="?", action=Checked, read=path, metavar="OUT", help="with convert: the folder to write")
    parser.add_argument("--to", choices=FORMATS, default=FORMATS[0], help="what convert writes (default safetensors)")
    parser.add_argument("--dtype", choices=DTYPES, help="of the floats in the safetensors (default: as they were trained)")
    parser.add_argument("--shard-size", action=Checked, read=size("1KB"), default=5 * 10**9, metavar="SIZE",
                        help="the most bytes in one file of safetensors (default 5GB)")


def run(args) -> Outcome:
    if not args.path.is_dir():
        raise BadInput(f"PATH is {args.path}, which is not a folder: name a checkpoint, or for ls a folder of them")
    if args.action != "convert":
        refuse_ignored(args.given, ("--to", "--dtype", "--shard-size"), f"with {args.action}")
        if args.out is not None:
            raise BadInput(f"OUT would change nothing with {args.action}, which writes nothing")
    elif args.out is None:
        raise BadInput("convert needs OUT, the folder to write")
    return {"ls": _ls, "verify": _verify, "convert": _convert}[args.action](args)


def _ls(args) -> Outcome:
    from ..engine.checkpoint.folders import checkpoint_folder as folders
    from ..engine.checkpoint.offline import summary
    from ..engine.checkpoint.source import Source

    last, rows = folders.latest(args.path), []
    data = {"checkpoints": {}, "latest": last, "torn": folders.torn_in(args.path), "broken": {}}
    for name in folders.all_in(args.path):
        try:
            held = data["checkpoints"][name] = summary(Source(folders.must_read(args.path / name)))
        except (BadInput, OSError) as error:
            data["broken"][name] = str(error)
            rows.append(f"{name:20} broken: {error}")
            continue
        said = f"saved by {held['ranks']} ranks at stage {held['stage']}{', the latest' if name == last else ''}"
        rows.append(f"{name:20} {held['params']:>15,} parameters  {gb(held['bytes']):>10}  {said}")
    rows += [f"{name:20} what a killed save left: no checkpoint" for name in data["torn"]]
    return Outcome("\n".join(rows) or f"there is no checkpoint in {args.path}", data, ok=not data["broken"])


def _verify(args) -> Outcome:
    from ..engine.checkpoint.folders import checkpoint_folder as folders
    from ..engine.checkpoint.folders.checkpoint_index import FORMATS, damage, read_index

    folder = folders.must_read(args.path)
    index = read_index(folder)
    problems, data = list(damage(folder, index)), {}
    if index["format"] < FORMATS[-1]:
        data["note"] = f"{folder / folders.INDEX} is of an earlier version and has no checksum of its own, so no damage in it is seen"
    text = "\n".join([*(problems or [f"{args.path} is whole"]), *data.values()])
    return Outcome(text, {"problems": problems} | data, ok=not problems)


def _convert(args) -> Outcome:
    import tempfile

    import torch

    from ..engine.checkpoint.deepspeed_checkpoint import convert, is_deepspeed
    from ..engine.checkpoint.folders import checkpoint_folder as folders
    from ..engine.checkpoint.offline import export
    from ..engine.checkpoint.source import Source

    theirs = is_deepspeed(args.path)
    if args.to == "zerocourse":
        refuse_ignored(args.given, ("--dtype", "--shard-size"), "with --to zerocourse")
        if not theirs:
            raise BadInput(f"PATH is {args.path}, which is not one of DeepSpeed's: there is nothing to convert")
        check_folder(args.out.parent, "OUT's folder")
        convert(args.path, args.out)
        return Outcome(f"{args.out} is a checkpoint now", {"files": [str(args.out)]})
    check_folder(args.out, "OUT")
    is_new = not args.out.exists()
    args.out.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, args.dtype) if args.dtype else None
    try:
        with tempfile.TemporaryDirectory(dir=args.out) as between:
            source = Path(between, "c")
            if theirs:
                convert(args.path, source)
            names = export(Source(source if theirs else folders.must_read(args.path)), args.out, dtype, args.shard_size)
    except BaseException:
        if is_new and not any(args.out.iterdir()):
            args.out.rmdir()
        raise
    files = [str(args.out / name) for name in names]
    return Outcome("\n".join(files), {"files": files})
