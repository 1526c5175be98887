"""What the commands share: arguments that are read and refused in one way, and outputs that are tried before any work.

    parser.add_argument("--ranks", action=Checked, read=whole(least=1), default=2)

`args.given` has the options that were on the command line, so that a command can refuse one that it would ignore.
"""

import argparse
import contextlib
import difflib
import math
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from ..errors import BadInput
from ..formulas.units import integer, parse_bytes, parse_count
from ..launch.processes.parent import PLACES, SWITCH

MOST = 10**18  # parameters or bytes: a million times what anybody trains, and far from what a float cannot hold
MOST_RANKS = 10**9
MOST_SEED = 2**63 - 1  # torch's
MINUS = re.compile(r"-(\.?\d|inf|nan)", re.IGNORECASE)  # argparse takes -7e9 for an option
PROBE_BYTES = 4096  # enough to notice a disk that is full


class Checked(argparse.Action):
    """An argument whose value is `read(text, name)`; its BadInput is the command's whole complaint."""

    def __init__(self, *args, read: Callable[[str, str], object], **kwargs):
        super().__init__(*args, **kwargs)
        self.read = read

    def __call__(self, parser, namespace, text, option=None):
        if text is not self.default:  # an optional positional argument that is left out
            try:
                text = self.read(text, option or self.dest)
            except BadInput as error:
                parser.error(str(error))
        setattr(namespace, self.dest, text)


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence, names the neighbour of a mistyped word, and reads -7e9 as a number."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)  # --rank would mean --ranks until there is a --rank-map

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message}\n")

    def _check_value(self, action, value):
        """argparse calls this for a word out of `choices`, the command among them."""
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings)
            what = f"{name} cannot be {value!r}" if name else f"there is no {str(action.metavar or action.dest).lower()} {value!r}"
            self.error(f"{what}: {nearest(str(value), map(str, action.choices))}")

    def parse_known_args(self, args=None, namespace=None):
        """argparse calls this for a command's own arguments; the words before the command are not looked at."""
        if self._subparsers is None:
            args, given = self._options(list(args))
            self.set_defaults(given=given)
        return super().parse_known_args(args, namespace)

    def _options(self, words: list[str]) -> tuple[list[str], frozenset[str]]:
        """The words with negative numbers joined to their option, and the options there are among them."""
        known, joined, given = self._option_string_actions, [], set()
        passes_on = any(action.nargs == argparse.REMAINDER for action in self._actions)
        for number, word in enumerate(words):
            if word == "--":
                return joined + words[number:], frozenset(given)
            name = word.partition("=")[0]
            before = known.get(joined[-1]) if joined else None
            if passes_on and not word.startswith("-") and (before is None or before.nargs == 0):
                return joined + words[number:], frozenset(given)  # a script, and after it its own options
            if MINUS.match(word):
                if before is not None and before.nargs != 0:
                    word = f"{joined.pop()}={word}"
            elif len(word) > 1 and word.startswith("-"):
                if name not in known:
                    self.error(unknown_option(name, known))
                given.add(name)
            joined.append(word)
        return joined, frozenset(given)


def unknown_option(name: str, known: Iterable[str]) -> str:
    """One sentence with the nearest option, or with all of them."""
    known = [each for each in known if each.startswith("--")]
    meant = "--" + name.lstrip("-")
    return f"there is no option {name}: {nearest(meant, known)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known: the one that was meant, or all there are."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def refuse_ignored(given: Collection[str], options: Iterable[str], when: str) -> None:
    """Raise BadInput when one of `options` is given although it changes nothing. when: "without --model, ..."."""
    ignored = [option for option in options if option in given]
    if ignored:
        raise BadInput(f"{' and '.join(ignored)} would change nothing {when}")


# Where ranks compute ------------------------------------------------------------------------------------------------

def add_device(parser, otherwise: str) -> None:
    parser.add_argument("--device", choices=PLACES, help=f"where the ranks compute (default: ZEROCOURSE_DEVICE, else {otherwise})")


def set_device(args, otherwise: str) -> None:
    """--device, or else `otherwise`, is from now on what this process and its ranks compute on. What the environment says
    already stays, unless the option says something else. Raises BadInput where it cannot be."""
    if args.device:
        os.environ[SWITCH] = args.device
    os.environ.setdefault(SWITCH, otherwise)
    from ..comm import bootstrap  # here, because torch takes two seconds to import
    bootstrap.uses_gpu()


# Reading: (text, name of the argument) → value, or BadInput -----------------------------------------------------------

def whole(least: int, most: int | None = None) -> Callable[[str, str], int]:
    """A whole number in that range, and at most `MOST` in any case."""
    def read(text: str, name: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = text
        too_large = isinstance(value, int) and value > MOST
        return integer(value, name, least, MOST if most is None and too_large else most)
    return read


def positive(what: str) -> Callable[[str, str], float]:
    """A positive number of `what`."""
    def read(text: str, name: str) -> float:
        with contextlib.suppress(ValueError):
            if 0 < (value := float(text)) < math.inf:
                return value
        raise BadInput(f"{name} is {text!r}: it must be a positive number{f' of {what}' if what else ''}")
    return read


seconds = positive("seconds")


def count(text: str, name: str) -> int:
    """A number of parameters, see `parse_count`."""
    return _amount(text, name, parse_count, 1)


def size(least: str = "1B") -> Callable[[str, str], int]:
    """A number of bytes with its unit, see `parse_bytes`, and at least as many as `least`."""
    return lambda text, name: _amount(text, name, parse_bytes, parse_bytes(least), f"at least {least}")


def _amount(text: str, name: str, parse: Callable[[str], int], least: int, wanted: str = "a positive number") -> int:
    if MINUS.match(text):
        raise BadInput(f"{name} is {text}: it must be {wanted}")
    try:
        value = parse(text)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
    if not least <= value <= MOST:
        raise BadInput(f"{name} is {text}: it must be {wanted if value < least else f'at most {MOST:.0e}'}")
    return value


def path(text: str, name: str) -> Path:
    """The path of a file or a folder."""
    if not text.strip() or "\0" in text:
        raise BadInput(f"{name} is {text!r}: it must name a file or a folder")
    return Path(text)


# Outputs: tried before any work, and left as they were ----------------------------------------------------------------

def check_folder(folder: Path, name: str) -> None:
    """Raise BadInput unless files can be written into `folder`, which a command makes with its parents when it is done.

    Permissions alone do not tell (root may write to /proc, and cannot), so folder and file are made, and removed.
    """
    made: list[Path] = []
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir()
            made.append(each)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
    except OSError as error:
        raise BadInput(f"{name} is {folder}, where nothing can be written ({error.strerror}): "
                       "it must be a folder that is yours to write, or that can be made") from None
    finally:
        for each in reversed(made):
            with contextlib.suppress(OSError):  # somebody else has put a file there by now
                each.rmdir()


def check_file(file: Path, name: str) -> None:
    """Raise BadInput unless `file` can be written, in a folder that is there. A file that is there stays as it is."""
    try:
        if file.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if not file.exists():
            with open(file, "xb") as probe:
                probe.write(bytes(PROBE_BYTES))
            file.unlink()
        elif file.is_file():
            open(file, "ab").close()
        elif not os.access(file, os.W_OK):  # opening a pipe would wait for its reader
            raise PermissionError(0, "it is not yours to write")
    except OSError as error:
        raise BadInput(f"{name} is {file}, which cannot be written ({error.strerror}): "
                       "it must be a file in a folder that is there and yours to write") from None
