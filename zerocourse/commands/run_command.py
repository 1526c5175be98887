"""Run a script that imports DeepSpeed, such as one of Hugging Face's Trainer, unchanged on our stages.

  zerocourse run train.py --deepspeed ds_config.json --output_dir out
  zerocourse run --nproc 4 train.py --deepspeed ds_config.json --output_dir out

What follows the script is the script's. Its ranks run under torchrun, and `import deepspeed` finds our stages in them.
Lines appear on stdout as they are printed, with their rank in front; with --json they go to stderr. On several machines,
and in a job of SLURM, torchrun does the same: torchrun ... -m zerocourse.engine.bridge train.py ...
"""

import argparse
import functools
import sys

from ..errors import BadInput
from . import Outcome
from .arguments import Checked, path, whole

HELP = "run an unchanged DeepSpeed or Hugging Face Trainer script on our stages"


def configure(parser):
    parser.add_argument("--nproc", action=Checked, read=whole(1), default=2, help="ranks on this machine (default 2)")
    parser.add_argument("script", action=Checked, read=path, metavar="SCRIPT", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")


def run(args) -> Outcome:
    if not args.script.is_file():
        raise BadInput(f"SCRIPT is {args.script}, which is not a file: name a Python script")
    from ..launch.launcher import launch

    echo = functools.partial(print, file=sys.stderr if args.json else sys.stdout, flush=True)
    results = launch("zerocourse.engine.bridge", argv=[args.script, *args.arguments], nproc=args.nproc, echo=echo)
    text = f"{args.script} ran on {args.nproc} ranks in {results.seconds:.1f} s"
    return Outcome(text, {"script": str(args.script), "ranks": args.nproc, "seconds": results.seconds})
