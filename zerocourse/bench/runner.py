"""The bench itself: when each mode is tuned, watched and timed, and in which processes.

Memory and bytes are watched under two meters, in a program of their own (`main`): only when it starts can a process be
put in a private network and under a preloaded library. Times are taken elsewhere, in plain processes without either.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from ..data.text import read_tokens, write_tokens
from ..errors import ZeroCourseError
from ..launch.machine import available_bytes
from ..launch.processes.parent import current_parent
from ..launch.progress_bar import progress_bar
from ..launch.ranks import Ranks
from .meters import bring_loopback_up, build_heap_meter, private_network
from .settings import AGAIN, ALONE, BASELINE, MODES, BenchMode, BenchSettings

ENOUGH_TOKENS = 2_000_000
SHARE_OF_MEMORY = 0.6  # of what is available, that one race may take
LIMIT_SECONDS = 1800  # for one measurement
BYTES_A_PARAMETER = 20  # assumed before a mode was metered: fp32 Adam, and a bucket
PROCESS_BYTES = 150 << 20  # of one rank besides its model
DEEPSPEED = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "DS_LOG_LEVEL": "error"}  # it needs to be told

Watched = dict[str, list[dict]]


def measure(settings: BenchSettings, modes: Sequence[BenchMode], quiet: bool = False) -> dict:
    """Tune, watch and race the modes on real ranks.

    Returns {"watched": {mode: [what each rank measured]}, "races": [{mode, "again" or "alone": [what the step took, see
    `Bench.race`, a round]}], "tuning": {mode: {bucket size: median seconds}}, "buckets": {mode: the size chosen},
    "hooks": see `hook_costs`, "heap": was there a heap meter, "private": a private network}.
    Raises ZeroCourseError when a rank fails.
    """
    # Inside this process's folder, which is removed also when the bench is killed.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=current_parent().folder) as folder:
        tokens = write_tokens(read_tokens(settings.source)[:ENOUGH_TOKENS], Path(folder, "tokens.npy"))
        meters = Meters(Path(folder), quiet)
        measured = Bench(replace(settings, source=str(tokens)), list(modes), meters.watch, quiet).run()
        return measured | {"heap": meters.heap is not None, "private": meters.private is not None}


# Memory and bytes, metered --------------------------------------------------------------------------------------------

class Meters:
    """Runs `main` under the meters that this machine has."""

    def __init__(self, folder: Path, quiet: bool):
        self.folder, self.quiet = folder, quiet
        self.heap, self.private = build_heap_meter(folder), private_network()

    def watch(self, settings: BenchSettings, buckets: dict[str, int | None]) -> Watched:
        """What each rank measured in each of the modes in `buckets`."""
        task, answer = self.folder / "task.json", self.folder / "answer.json"
        task.write_text(json.dumps({"settings": asdict(settings), "buckets": buckets, "quiet": self.quiet,
                                    "private": self.private is not None, "answer": str(answer), "parent": os.getpid()}))
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
                                    **({"LD_PRELOAD": str(self.heap)} if self.heap else {})}
        command = [*(self.private or []), sys.executable, "-m", "zerocourse.bench", str(task)]
        ended = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE if self.quiet else None, text=True)
        if ended.returncode or not answer.exists():
            said = (ended.stderr or "its reason is above")[-3000:]
            raise ZeroCourseError(f"the metered part of the bench ended with exit status {ended.returncode}: {said}")
        return json.loads(answer.read_text())


def main(task: str) -> None:
    """The metered program: read the task, watch each mode in it, write the answer."""
    spec = json.loads(Path(task).read_text())
    die_with(spec["parent"])
    if spec["private"]:
        bring_loopback_up()
    watched = watch_all(BenchSettings(**spec["settings"]), spec["buckets"], spec["private"], spec["quiet"])
    Path(spec["answer"]).write_text(json.dumps(watched))


def die_with(parent: int) -> None:
    """End when the parent does, however it ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent had already ended
            raise SystemExit(1)


def watch_all(settings: BenchSettings, buckets: dict[str, int | None], private: bool, quiet: bool) -> Watched:
    """One mode after the other; each on new ranks, unless the settings are content with those of before."""
    from .in_ranks import watch

    watched, bar, ranks = {}, progress_line(quiet), None
    # A second DeepSpeed engine in the same processes finds groups of the first one, which are gone.
    renew = settings.fresh or any(MODES[name].wants == "deepspeed" for name in buckets)
    for name, bucket in buckets.items():
        bar.set_description_str(f"memory of {MODES[name].label}")
        ranks = ranks or new_ranks(settings)
        watched[name] = list(ranks.run(watch, settings, (name, bucket), private))
        if renew:
            ranks.close()
            ranks = None
    if ranks:
        ranks.close()
    bar.close()
    return watched


def new_ranks(settings: BenchSettings, nproc: int | None = None) -> Ranks:
    return Ranks(nproc or settings.ranks, quiet=True, timeout=LIMIT_SECONDS, oversubscribe=True, device="cpu",
                 env={"OMP_NUM_THREADS": settings.threads, **DEEPSPEED})


def progress_line(quiet: bool):
    return progress_bar(wanted=not quiet, file=sys.stderr, bar_format="{desc} [{elapsed}]")


# Times, as a user would meet them -------------------------------------------------------------------------------------

class Entrant:
    """A mode in a race: ranks of its own, which wait while the others take their turns."""

    def __init__(self, settings: BenchSettings, mode: str, bucket: int | None):
        self.ranks = new_ranks(settings)
        self.ranks.exec("from zerocourse.bench.in_ranks import Racer\n"
                        "from zerocourse.bench.settings import BenchSettings\n"
                        f"racer = Racer({replace(settings, budget=None)!r}, {mode!r}, {bucket!r})")

    def lap(self) -> list[float]:
        """[seconds of the slowest rank; of all ranks: processor seconds, the main threads' of these, page faults]"""
        clock, *counts = zip(*self.ranks.exec("racer.lap()"), strict=True)
        return [max(clock), *map(sum, counts)]

    def close(self) -> None:
        self.ranks.close()


class Bench:
    """The order of the work. `watch` meters the modes: (settings, {mode: bucket size}) → what each rank measured."""

    def __init__(self, settings: BenchSettings, modes: list[BenchMode], watch: Callable[..., Watched], quiet: bool):
        self.settings, self.modes, self.watch = settings, modes, watch
        self.deadline = None if settings.budget is None else time.monotonic() + settings.budget
        self.bar = progress_line(quiet)
        middle = {mode.name: mode.buckets[len(mode.buckets) // 2] for mode in modes if mode.buckets}
        self.buckets: dict[str, int | None] = dict.fromkeys(mode.name for mode in modes) | middle
        self.held: dict[str, int] = {}  # bytes that a mode holds between steps, as metered

    def run(self) -> dict:
        tuning = {mode.name: self.tune(mode) for mode in self.modes if mode.buckets and self.settings.tuning_rounds}
        self.bar.set_description_str("memory")
        watched = self.watch(self.settings, self.buckets)
        for name, ranks in watched.items():
            held = [got["heap_held_bytes"] for got in ranks]
            self.held[name] = max(held) if None not in held else BYTES_A_PARAMETER * self.settings.params
        races = [self.race(names) for names in self.groups()]
        hooks = self.hooks()
        self.bar.close()
        return {"watched": watched, "races": races, "tuning": tuning, "buckets": self.buckets, "hooks": hooks}

    def hooks(self) -> dict:
        from .parts.hook_cost import hook_costs

        self.bar.set_description_str("cost of the hooks")
        with new_ranks(self.settings, nproc=1) as rank:
            return rank.run(hook_costs, self.settings)[0]

    def tune(self, mode: BenchMode) -> dict[int, float]:
        """Median seconds of a step with each bucket size; the fastest is taken from now on."""
        self.bar.set_description_str(f"bucket sizes of {mode.label}")
        room = max(1, self.room() // (BYTES_A_PARAMETER * self.settings.params + PROCESS_BYTES))
        seconds, sizes = {}, list(mode.buckets)
        for first in range(0, len(sizes), room):
            entries = {size: (mode.name, size) for size in sizes[first : first + room]}
            laps = self.laps(entries, self.settings.tuning_rounds)
            seconds |= {size: median(clock for clock, *_ in laps[size]) for size in entries}
        self.buckets[mode.name] = min(seconds, key=seconds.get)
        return seconds

    def race(self, names: list[str]) -> dict[str, list[list[float]]]:
        """What a step took in each round, see `Entrant.lap`, of these modes, of ALONE (the floor), and of AGAIN: the
        baseline a second time, in other processes, as a control of the whole method."""
        self.bar.set_description_str(f"racing {', '.join(names)}")
        entries = {name: (name, self.buckets[name]) for name in names}
        return self.laps(entries | {ALONE: (ALONE, None), AGAIN: entries[BASELINE]}, self.settings.rounds)

    def laps(self, entries: dict, rounds: int) -> dict[object, list[list[float]]]:
        """One turn each in every round, the order moved on by one from round to round; no round begins after the
        deadline, but one is always run. entries: key → a mode's name and its bucket size."""
        entrants: dict = {}
        try:
            for key, (mode, bucket) in entries.items():
                entrants[key] = Entrant(self.settings, mode, bucket)
            laps = {key: [] for key in entries}
            for number in range(rounds):
                if number and self.deadline is not None and time.monotonic() > self.deadline:
                    break
                for key in turns(list(entries), number):
                    laps[key].append(entrants[key].lap())
            return laps
        finally:
            for entrant in entrants.values():
                entrant.close()

    def groups(self) -> list[list[str]]:
        """Which modes are timed together: each with its peers and the baseline, as many groups as fit in memory."""
        names = {mode.name for mode in self.modes}
        least = [{BASELINE, mode.name, peer} for mode in self.modes for peer in mode.matches if peer in names]
        least += [{BASELINE, name} for name in sorted(names) if not any(name in group for group in least)]
        merged: list[set[str]] = []
        for group in least:
            for other in merged:
                if self.fits(other | group):
                    other |= group
                    break
            else:
                merged.append(set(group))
        return [[mode.name for mode in self.modes if mode.name in group] for group in merged]

    def fits(self, group: set[str]) -> bool:
        spare = 16 * self.settings.params  # what the one that steps takes for a moment, and the one that is alone
        processes = (len(group) + 2) * PROCESS_BYTES  # with the floor and the control
        return sum(map(self.held.get, group)) + self.held[BASELINE] + processes + spare <= self.room()

    def room(self) -> int:
        """The bytes that one rank may use."""
        available = available_bytes()
        return int(SHARE_OF_MEMORY * available) // self.settings.ranks if available else sys.maxsize


def turns(names: list, number: int) -> list:
    """The order in round `number`. It moves on by one each round, so that no mode keeps a good place."""
    first = number % len(names)
    return names[first:] + names[:first]
