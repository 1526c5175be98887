"""The bench itself: which mode is watched, tuned and raced when, in which processes. Runs under the two meters.

`measure` starts this file's `main` as a program of its own, since a process can be put in a private network and under
a preloaded library only when it starts; its ranks are forked from there and inherit both.
"""

import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ..data.text import read_tokens, write_tokens
from ..errors import ZeroCourseError
from .meters import available_bytes, bring_loopback_up, build_heap_meter, private_network
from .settings import BASELINE, MODES, BenchMode, BenchSettings

ENOUGH_TOKENS = 2_000_000
SHARE_OF_MEMORY = 0.6  # of what is available, that one race may take
LIMIT_SECONDS = 1800  # for one measurement
BYTES_A_PARAMETER = 20  # assumed before a mode was metered: fp32 Adam, and a bucket


def measure(settings: BenchSettings, modes: Sequence[BenchMode], quiet: bool = False) -> dict:
    """Watch, tune and race the modes on real ranks.

    Returns {"watched": {mode: [what each rank measured]}, "races": [{mode, "again" or "alone": [what the step took, see
    `Bench.race`, a round]}],
    "tuning": {mode: {bucket size: median seconds}}, "buckets": {mode: the size chosen}, "hooks": see `hook_costs`,
    "heap": was there a heap meter, "private": a private network}.
    Raises ZeroCourseError when a rank fails.
    """
    with tempfile.TemporaryDirectory(prefix="zerocourse-bench-") as folder:
        tokens = write_tokens(read_tokens(settings.source)[:ENOUGH_TOKENS], Path(folder, "tokens.npy"))
        heap, private = build_heap_meter(Path(folder)), private_network()
        task, answer = Path(folder, "task.json"), Path(folder, "answer.json")
        task.write_text(json.dumps({
            "settings": asdict(replace(settings, source=str(tokens))), "modes": [mode.name for mode in modes],
            "private": private is not None, "quiet": quiet, "answer": str(answer), "parent": os.getpid()}))
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
                                    "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "DS_LOG_LEVEL": "error",
                                    **({"LD_PRELOAD": str(heap)} if heap else {})}
        command = [*(private or []), sys.executable, "-m", "zerocourse.bench", str(task)]
        ended = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE if quiet else None, text=True)
        if ended.returncode or not answer.exists():
            said = (ended.stderr or "its reason is above")[-3000:]
            raise ZeroCourseError(f"the bench ended with exit status {ended.returncode}: {said}")
        return json.loads(answer.read_text()) | {"heap": heap is not None}


def main(task: str) -> None:
    """The program: read the task, measure, write the answer."""
    spec = json.loads(Path(task).read_text())
    die_with(spec["parent"])
    if spec["private"]:
        bring_loopback_up()
    settings, modes = BenchSettings(**spec["settings"]), [MODES[name] for name in spec["modes"]]
    Path(spec["answer"]).write_text(json.dumps(Bench(settings, modes, spec["private"], spec["quiet"]).run()))


def die_with(parent: int) -> None:
    """End when the parent does, however it ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it was gone before we asked
            raise SystemExit(1)


class Bench:
    """The order of things. Each `fresh` call has ranks of its own, so that nothing is left of the one before."""

    def __init__(self, settings: BenchSettings, modes: list[BenchMode], private: bool, quiet: bool):
        from tqdm.auto import tqdm

        from ..launch.ranks import Ranks

        self.settings, self.modes, self.private = settings, modes, private
        self.deadline = None if settings.budget is None else time.monotonic() + settings.budget
        self.bar = tqdm(disable=quiet, file=sys.stderr, bar_format="{desc} [{elapsed}]")
        middle = {mode.name: mode.buckets[len(mode.buckets) // 2] for mode in modes if mode.buckets}
        self.buckets: dict[str, int | None] = dict.fromkeys(mode.name for mode in modes) | middle
        self.ranks = functools.cache(lambda nproc: Ranks(nproc, quiet=True, timeout=LIMIT_SECONDS, oversubscribe=True,
                                                         env={"OMP_NUM_THREADS": settings.threads}))
        # A second DeepSpeed engine in the same processes finds groups of the first one, which are gone.
        self.renew = settings.fresh or any(mode.wants == "deepspeed" for mode in modes)
        self.held: dict[str, int] = {}  # bytes that a mode holds between steps, as metered

    def run(self) -> dict:
        from .hook_cost import hook_costs

        tuning = {mode.name: self.tune(mode) for mode in self.modes if mode.buckets and self.settings.tuning_rounds}
        watched = {mode.name: self.watch(mode) for mode in self.modes}
        races = [self.race(names) for names in self.groups()]
        hooks = self.fresh("cost of the hooks", hook_costs, nproc=1)[0]
        self.bar.close()
        return {"watched": watched, "races": races, "tuning": tuning, "buckets": self.buckets, "private": self.private,
                "hooks": hooks}

    def fresh(self, saying: str, function, *args, nproc: int | None = None) -> list:
        """Run a function on new ranks (or, when the settings does not ask for new ones, on those of before)."""
        self.bar.set_description_str(saying)
        ranks = self.ranks(nproc or self.settings.ranks)
        try:
            return list(ranks.run(function, self.settings, *args))
        finally:
            if self.renew:
                self.ranks.cache_clear()
                ranks.close()

    def tune(self, mode: BenchMode) -> dict[int, float]:
        """Median seconds of a step with each bucket size; the fastest is taken from now on."""
        from statistics import median

        from .in_ranks import race

        room = max(1, self.room() // (BYTES_A_PARAMETER * self.settings.params))
        seconds, sizes = {}, list(mode.buckets)
        for first in range(0, len(sizes), room):
            entries = [(mode.name, size) for size in sizes[first : first + room]]
            found = self.fresh(f"bucket sizes of {mode.label}", race, entries, self.settings.tuning_rounds, self.deadline,
                               False)[0]
            seconds |= {size: median(clock for clock, *_ in found[f"{mode.name}@{size}"]) for _, size in entries}
        self.buckets[mode.name] = min(seconds, key=seconds.get)
        return seconds

    def watch(self, mode: BenchMode) -> list[dict]:
        from .in_ranks import watch

        found = self.fresh(f"memory of {mode.label}", watch, (mode.name, self.buckets[mode.name]), self.private)
        held = [got["heap_held_bytes"] for got in found]
        self.held[mode.name] = max(held) if None not in held else BYTES_A_PARAMETER * self.settings.params
        return found

    def groups(self) -> list[list[str]]:
        """Who races whom: each mode with its peers and the baseline, as many such groups at once as fit in memory."""
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
        return sum(self.held[name] for name in group) + spare <= self.room()

    def room(self) -> int:
        """Bytes that one rank may take."""
        available = available_bytes()
        return int(SHARE_OF_MEMORY * available) // self.settings.ranks if available else sys.maxsize

    def race(self, names: list[str]) -> dict[str, list[list[float]]]:
        """[Seconds of the slowest rank; of all ranks: processor seconds, those of the threads that compute, page faults]
        a round."""
        from .in_ranks import race

        entries = [(name, self.buckets[name]) for name in names]
        ranks = self.fresh(f"racing {', '.join(names)}", race, entries, self.settings.rounds, self.deadline, True)
        found = {}
        for name in ranks[0]:
            steps = zip(*(rank[name] for rank in ranks), strict=True)  # a round: what each rank measured
            found[name.partition("@")[0]] = [[max(clock), *map(sum, counts)]
                                             for clock, *counts in (zip(*step, strict=True) for step in steps)]
        return found
