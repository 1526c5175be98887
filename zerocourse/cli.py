"""The command line: finds the command, prints its outcome, and turns errors into exit statuses.

Exit status: 0, 1 (it ran, and what it checked failed), 2 (bad input, or a stdout that cannot take the outcome: one sentence
on stderr, no traceback), 130 (interrupted).
"""

import argparse
import importlib
import json
import pkgutil
import sys

from . import __version__, commands
from .commands.arguments import CommandParser
from .commands.stdout import write
from .commands.terminal import coloured, fitted, paragraphs
from .errors import BadInput, ZeroCourseError

ENDING = "_command"  # of the modules in `commands` that are commands


def modules() -> dict[str, str]:
    """The module of each command, by the command's name."""
    paths = (info.name for info in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}."))
    return {name: path for path in sorted(paths, key=last) if (name := last(path).removesuffix(ENDING)) != last(path)}


def last(path: str) -> str:
    return path.rpartition(".")[2]


def build_parser() -> CommandParser:
    """One sub-parser for each command of `zerocourse.commands`; each also takes `--json`."""
    parser = CommandParser(prog="zerocourse", description="ZeRO as real code, whose core one reads in an evening.")
    parser.add_argument("--version", action="version", version=f"zerocourse {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=CommandParser)
    for name, path in modules().items():
        module = importlib.import_module(path)
        sub = subparsers.add_parser(name, help=module.HELP, description=paragraphs(module.__doc__),
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return parser


def said(outcome: commands.Outcome) -> str:
    """For people; the user's own output, and a schema, as they are."""
    return outcome.text if outcome.verbatim else coloured(fitted(outcome.text))


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    who = "zerocourse"
    try:
        try:
            args = build_parser().parse_args(argv)
        except SystemExit as exit:  # argparse has said what is wrong, or shown the help
            write()
            return exit.code
        who = f"zerocourse {args.command}"
        outcome = args.run(args)
        if not outcome.said_by_another:
            write((json.dumps(outcome.data) if args.json else said(outcome)) + "\n")
    except (ZeroCourseError, OSError) as error:
        sys.stderr.writelines(f"{who}: {line}\n" for line in str(error).splitlines())
        return 2 if isinstance(error, (BadInput, OSError)) else 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{who}: interrupted\n")
        return 130
    return 0 if outcome.ok else 1
