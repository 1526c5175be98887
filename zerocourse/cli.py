"""The command line: finds the command, prints its outcome, and turns errors into exit statuses.

Exit status: 0, 1 (it ran, and what it checked failed), 2 (bad input: one sentence on stderr, no traceback),
130 (interrupted).
"""

import argparse
import importlib
import json
import pkgutil
import sys

from . import __version__, commands
from .errors import BadInput, ZeroCourseError


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one sentence, without the usage block."""

    def error(self, message: str):
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(2)


def build_parser() -> argparse.ArgumentParser:
    """One sub-parser for each module of `zerocourse.commands`; each also takes `--json`."""
    parser = _Parser(prog="zerocourse", description="ZeRO, small enough to read in an evening.")
    parser.add_argument("--version", action="version", version=f"zerocourse {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for info in pkgutil.iter_modules(commands.__path__):
        module = importlib.import_module(f"{commands.__name__}.{info.name}")
        sub = subparsers.add_parser(info.name.removesuffix("_command"), help=module.HELP, description=module.__doc__,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = build_parser().parse_args(argv)
    try:
        outcome = args.run(args)
    except (ZeroCourseError, OSError) as error:
        sys.stderr.write(f"zerocourse {args.command}: {error}\n")
        return 2 if isinstance(error, (BadInput, OSError)) else 1
    except KeyboardInterrupt:
        sys.stderr.write(f"zerocourse {args.command}: interrupted\n")
        return 130
    print(json.dumps(outcome.data) if args.json else outcome.text)
    return 0 if outcome.ok else 1
