"""Breaks the package on purpose, one line at a time, and says which breaks the tests notice.

    python -m tools.mutants                     every mutant of tools/mutant_table.py, some seconds each
    python -m tools.mutants NAME... [--list]    those whose name or file contains one of these words; --list only names them

A mutant that survives is a sentence of the package that no test asserts: write the test, or delete the sentence. All work
is done in a temporary copy. The exit status is 0 when every mutant was killed, 1 when one survived, 2 when the table is wrong.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 100  # of one mutant's tests: a mutant that hangs is killed, too
_clock = count(1)  # seconds of the files' times: Python must never take the bytecode of another mutant for this one's


class Mutant(NamedTuple):
    """One break: in `file` (inside zerocourse/) `old`, which stands there exactly once, becomes `new`.

    tests: the few tests, as `node` takes them, of which one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, house: Path) -> str:
        """The file's text with the break in it. Raises ValueError, in a sentence, where the table is out of date."""
        text = (house / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"mutant {self.name!r}: its old text is {times} times in {self.file}, and must be there once")
        changed = text.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        return changed


def chosen(words: list[str]) -> list[Mutant]:
    from tools.mutant_table import MUTANTS  # which imports this file

    for word in words:
        if not any(word in mutant.name or word in mutant.file for mutant in MUTANTS):
            raise ValueError(f"no mutant has {word!r} in its name or file: --list shows all {len(MUTANTS)}")
    return [mutant for mutant in MUTANTS if not words or any(word in mutant.name or word in mutant.file for word in words)]


def node(test: str) -> str:
    """pytest's node id of a test "file.py::name". No two files of tests have one name, so that a table says no room."""
    return f"{next((ROOT / 'tests').rglob(test.partition('::')[0])).parent.relative_to(ROOT)}/{test}"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (now := next(_clock), now))


def run(tests: Iterable[str], copy: Path, seconds: float) -> tuple[str, str]:
    """Run tests in the copy: "green", "red" or "hung", and what pytest said. In a fork, which has torch imported already."""
    output = copy / "output"
    pid = os.fork()
    if not pid:
        os.setsid()  # so that it can be killed with all that it has started
        os.chdir(copy)
        os.environ |= {"PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds to import
        for descriptor in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC * (descriptor == 1) | os.O_APPEND), descriptor)
        nodes = map(node, dict.fromkeys(tests))
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", *nodes]))
    until, code = time.monotonic() + seconds, None
    try:
        while code is None and time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.02)
    finally:
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {None: "hung", 0: "green"}.get(code, "red"), output.read_text()


def kill_all(mutants: list[Mutant], copy: Path) -> list[Mutant]:
    """Run them one by one, printing each verdict. Returns the survivors."""
    for part in ("zerocourse", "tests", "tools"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    house, begun = copy / "zerocourse", time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with more threads must not fork
    for slow in ("hypothesis", "torch._dynamo"):  # once, and not for every mutant
        import_module(slow)
    broken = [(mutant, mutant.apply(house)) for mutant in mutants]
    colour, said = run((test for mutant in mutants for test in mutant.tests), copy, 20 * LIMIT_SECONDS)
    if colour != "green":
        raise ValueError(f"the tests of the table are {colour} without any mutant:\n{said}")
    survivors = []
    print(f"without a mutant all is green ({time.monotonic() - begun:.0f} s)", flush=True)
    for mutant, text in broken:
        path, start = house / mutant.file, time.monotonic()
        whole = path.read_text()
        write(path, text)
        colour, _ = run(mutant.tests, copy, LIMIT_SECONDS)
        write(path, whole)
        survivors += [mutant] * (colour == "green")
        verdict = {"green": "SURVIVED", "red": "killed", "hung": "killed (hung)"}[colour]
        print(f"{verdict:13} {time.monotonic() - start:5.1f} s  {mutant.file:28} {mutant.name}", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed in {time.monotonic() - begun:.0f} s")
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="NAME", help="mutants whose name or file contains it; all by default")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    args = parser.parse_args()
    try:
        mutants = chosen(args.words)
        if args.list:
            print("\n".join(f"{mutant.file:28} {mutant.name}" for mutant in mutants))
            return 0
        with tempfile.TemporaryDirectory(prefix="mutants") as copy:
            return bool(kill_all(mutants, Path(copy)))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
