"""Explains a ds_config.json line by line: what each key does, and what that costs in bytes held and sent.

  zerocourse config ds_config.json --model gpt2 --nproc 2
  zerocourse config --schema > ds_config.schema.json
  zerocourse config --check ds_config.json other.json

Every problem of the file is named, one a line, with exit status 2. --check does so for several files, and says nothing else: it is for
hooks and scripts. --schema prints the JSON schema by which an editor
completes keys. Bytes are by formula, for a GPT-2 in the given size on sequences of its full length.
--json: {"config": with all defaults, "keys": [{"line", "path", "group", "does", "effect"}], and the counts of a rank}.
"""

import json
import warnings
from pathlib import Path

from ..errors import BadInput
from ..formulas.gpt2_config import find_config
from ..formulas.units import both
from . import Outcome
from .arguments import MOST_RANKS, Checked, path, refuse_ignored, whole

HELP = "explain a ds_config.json line by line, or say what is wrong with it"


def configure(parser):
    parser.add_argument("files", nargs="*", metavar="FILE", help="a ds_config.json; with --check any number of them")
    parser.add_argument("--check", action="store_true", help="only say what is wrong with the files")
    parser.add_argument("--model", default="gpt2", metavar="NAME", help="a GPT-2 by name (default gpt2)")
    parser.add_argument("--nproc", action=Checked, read=whole(1, MOST_RANKS), default=2, metavar="N",
                        help="ranks (default 2)")
    parser.add_argument("--auto", action="append", default=[], metavar="KEY=VALUE",
                        help="what an \"auto\" of the file stands for, such as optimizer.params.lr=1e-4; once for each")
    parser.add_argument("--trainer", action="store_true",
                        help="what is \"auto\" and not named is what Hugging Face's TrainingArguments have by default, as with --check")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema, and read no file")


def run(args) -> Outcome:
    if args.schema:
        refuse_ignored(args.given, ("--model", "--nproc", "--auto", "--check", "--trainer"), "with --schema, which reads no file")
        from ..engine.config.json_schema import json_schema
        return Outcome(json.dumps(json_schema(), indent=2, ensure_ascii=False), json_schema(), verbatim=True)
    if not args.files:
        raise BadInput("FILE is missing: name a ds_config.json, or ask for its --schema")
    files = [path(name, "FILE") for name in args.files]
    if args.check:
        refuse_ignored(args.given, ("--model", "--trainer"), "with --check, which counts no bytes and always knows the Trainer's defaults")
        return check(files, args.nproc, dict(map(supposed, args.auto)))
    if len(files) > 1:
        raise BadInput(f"there are {len(files)} files, and one is explained at a time: ask for --check, or name one")
    from ..engine.config import Config
    from ..engine.config.auto import of_trainer
    from ..engine.config.explain import counts, effects
    from ..engine.config.json_file import keys_by_line, parse, read_text
    from ..engine.config.keys import KEYS

    model, known = find_config(args.model), dict(map(supposed, args.auto))
    (file,) = files
    if args.trainer:
        known = of_trainer(parse(read_text(file), file)) | known
    with warnings.catch_warnings():  # what changes nothing stands in the table
        warnings.simplefilter("ignore")
        config = Config.load(file, args.nproc, known)
    text, does = read_text(file), effects(config, model, args.nproc)
    keys = [{"line": line, "path": path, "group": KEYS[path].group.value, "does": KEYS[path].does,
             "effect": does.get(path)}
            for path, line in keys_by_line(text) if path in KEYS]
    of_rank = counts(config, model, args.nproc)
    return Outcome(explained(args, file, text, keys, of_rank), {"config": config.as_dict(), "keys": keys, **of_rank})


def supposed(text: str) -> tuple[str, object]:
    """KEY=VALUE, of which the value is JSON. Raises BadInput."""
    key, _equals, value = text.partition("=")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        raise BadInput(f"--auto is {text!r}: it must be KEY=VALUE with a JSON value, such as "
                       "optimizer.params.lr=1e-4") from None


def check(files: list[Path], ranks: int, known: dict) -> Outcome:
    """Raises BadInput with the problems of all files, a line each. A file without any is named in the outcome."""
    from ..engine.config import Config
    from ..engine.config.auto import of_trainer
    from ..engine.config.json_file import parse, read_text

    problems = []
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Config.load(file, ranks, of_trainer(parse(read_text(file), file)) | known)
        except BadInput as error:
            problems.append(str(error))
    if problems:
        raise BadInput("\n".join(problems))
    return Outcome(f"{len(files)} file{'s' * (len(files) > 1)}: nothing is wrong", {"files": list(map(str, files)), "problems": []})


def explained(args, file: Path, text: str, keys: list[dict], of_rank: dict) -> str:
    """The file's lines, with what their keys do below each."""
    lines = [f"{file} for {args.model} ({of_rank['params']:,} parameters) on {args.nproc} ranks", ""]
    for number, line in enumerate(text.splitlines(), 1):
        lines.append(f"{number:4}  {line.rstrip()}")
        of_line = [key for key in keys if key["line"] == number]
        for key in of_line:
            name = f"{key['path']}: " * (len(of_line) > 1)
            group = "" if key["group"] == "works" else f"{key['group']}: "
            lines.append(f"{'':10}> {name}{group}{key['does']}")
            if key["effect"]:
                lines.append(f"{'':12}here: {key['effect']}")
    peak = f", about {both(of_rank['peak_bytes'])} at the peak of a step" if of_rank["peak_bytes"] is not None else ""
    return "\n".join(lines + ["", (f"In all a rank holds {both(of_rank['total_bytes'])} of model states{peak}, "
                                   f"and sends {both(of_rank['sent_bytes'])} per step.")])
