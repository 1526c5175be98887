"""Run a script that imports DeepSpeed, such as one of Hugging Face's Trainer, unchanged on our stages.

  zerocourse run train.py --deepspeed ds_config.json --output_dir out
  zerocourse run --nproc 4 train.py --deepspeed ds_config.json --output_dir out

What follows the script is the script's. Its ranks run under torchrun, and `import deepspeed` finds our stages in them.
Lines appear on stdout as they are printed, with their rank in front; with --json they go to stderr. On several machines,
and in a job of SLURM, torchrun does the same: torchrun ... -m zerocourse.engine.bridge train.py ...
"""

import argparse
import sys

from ..errors import BadInput, ZeroCourseError
from . import Outcome
from .arguments import Checked, add_device, path, set_device, whole
from .stdout import write

HELP = "run an unchanged DeepSpeed or Hugging Face Trainer script on our stages"


def configure(parser):
    parser.add_argument("--nproc", action=Checked, read=whole(1), default=2, help="ranks on this machine (default 2)")
    add_device(parser, "auto: GPUs if there are some")
    parser.add_argument("script", action=Checked, read=path, metavar="SCRIPT", help="a Python script")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    rest.required = False  # argparse would name it beside a SCRIPT that is missing


def run(args) -> Outcome:
    if not args.script.is_file():
        raise BadInput(f"SCRIPT is {args.script}, which is not a file: name a Python script")
    from ..launch.launcher import launch
    from .estimates import check_ranks

    check_ranks(args.nproc, "--nproc")
    set_device(args, "auto")
    echo = _to_stderr if args.json else _to_stdout
    results = launch("zerocourse.engine.bridge", argv=[args.script, *args.arguments], nproc=args.nproc, echo=echo)
    text = f"{args.script} ran on {args.nproc} ranks in {results.seconds:.1f} s"
    return Outcome(text, {"script": str(args.script), "ranks": args.nproc, "seconds": results.seconds})


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _to_stdout(line: str) -> None:
    if not write(f"{line}\n"):
        raise ZeroCourseError("nobody reads what the script prints any more, so it was ended")
