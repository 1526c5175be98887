"""Breaks the package on purpose, one place at a time, and says which breaks the tests notice.

    python -m tools.mutants offload/on_disk/disk.py         every break that a generic operator can make in this file, and those of the
                                                    table that are in it, each with the tests that should notice (`mutant_table`)
    python -m tools.mutants disk.py:40-60           those in these lines: the ones that you have just written
    python -m tools.mutants disk.py --sample 30     thirty of them, always the same ones
    python -m tools.mutants                         the table's own breaks, of all files
    python -m tools.mutants ... --list              only names them

A mutant that survives is a sentence of the package that no test asserts: write the test, or delete the sentence; or it changes
nothing that one could see. All work is done in a temporary copy. The exit status is 0 when every mutant was killed, 1 when one
survived, 2 when the table or the command is wrong.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest

from tools.mutant import ROOT, Mutant

LIMIT_SECONDS = 100  # of the tests of one mutant, or twice what all take without one: a mutant that hangs is killed, too
_clock = count(1)  # seconds of the files' times: Python must never take the bytecode of another mutant for this one's


def listed(places: list[str], sample: int | None) -> list[Mutant]:
    """As `mutant_list.chosen`, from another process: this one must not import the whole package, or tests in it would see that."""
    with ProcessPoolExecutor(1) as other:
        return other.submit(_chosen, places, sample).result()


def _chosen(*args) -> list[Mutant]:
    return import_module("tools.mutant_list").chosen(*args)


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
        nodes = [f"tests/{test}" for test in dict.fromkeys(tests)]
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
    begun = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with more threads must not fork
    for slow in ("hypothesis", "torch._dynamo"):  # once, and not for every mutant
        import_module(slow)
    colour, said = run((test for mutant in mutants for test in mutant.tests), copy, 20 * LIMIT_SECONDS)
    if colour != "green":
        raise ValueError(f"the tests of the table are {colour} without any mutant:\n{said}")
    survivors, limit = [], max(LIMIT_SECONDS, 2 * (time.monotonic() - begun))
    print(f"without a mutant all is green ({time.monotonic() - begun:.0f} s)", flush=True)
    for mutant in mutants:
        path, start = copy / "zerocourse" / mutant.file, time.monotonic()
        whole = path.read_text()
        write(path, mutant.text)
        colour, _ = run(mutant.tests, copy, limit)
        write(path, whole)
        survivors += [mutant] * (colour == "green")
        verdict = {"green": "SURVIVED", "red": "killed", "hung": "killed (hung)"}[colour]
        print(f"{verdict:13} {time.monotonic() - start:5.1f} s  {mutant.file:28} {mutant.name}", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed in {time.monotonic() - begun:.0f} s")
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("places", nargs="*", metavar="FILE", help="a file of the package, or lines of it, as in disk.py:40-60")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N generic mutants of each file")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    args = parser.parse_args()
    try:
        mutants = listed(args.places, args.sample)
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
