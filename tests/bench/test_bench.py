"""The bench: its meters count what is there, its verdict says what is so, and a quick run of all modes agrees."""

import copy
import dataclasses
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zerocourse import bench, cli
from zerocourse.bench import meters, report, runner
from zerocourse.bench.judge import Profile, checks, noise, profiles, ratio
from zerocourse.bench.report import alt_text, summarise, table, where_time_goes
from zerocourse.bench.runner import turns
from zerocourse.bench.settings import AGAIN, ALONE, BASELINE, MODES, BenchMode, BenchSettings, find_modes
from zerocourse.commands import estimates
from zerocourse.commands.bench_command import write
from zerocourse.errors import BadInput
from zerocourse.launch.machine import available_bytes

ROOT = Path(__file__).parents[2]
OURS = [mode.name for mode in MODES.values() if mode.ours]
TORCH = [mode.name for mode in MODES.values() if mode.wants == "torch"]
SETTINGS = BenchSettings(2, 64, 256, 32, 4, rounds=2, tuning_rounds=0, fresh=False)
COUNTS = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "total_bytes", "peak_bytes", "heap_peak_bytes",
          "wire_bytes", "sent_bytes")
PRIVATE = meters.private_network()
needs_network = pytest.mark.skipif(PRIVATE is None, reason="a network namespace is not permitted here")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    library = meters.build_heap_meter(tmp_path_factory.mktemp("heap"))
    if library is None:
        pytest.skip("the heap meter needs a C compiler and glibc")
    return library


@pytest.fixture(scope="module")
def found():
    """A quick run of every mode that comes with torch."""
    return runner.measure(SETTINGS, [MODES[name] for name in TORCH], quiet=True)


@pytest.fixture
def modes():
    return [MODES[name] for name in TORCH]


# a whole run

@pytest.mark.alone  # as the first it measures for all: times, as ratios
@pytest.mark.timeout(240)
def test_losses_and_bytes_agree_in_every_mode(found, modes):
    wrong = [check for check in checks(SETTINGS, modes, found["watched"]) if not check.ok]
    assert not wrong
    losses = {name: [got["losses"] for got in found["watched"][name]] for name in TORCH}
    assert all(losses[name] == losses[BASELINE] for name in TORCH), "at two ranks in fp32: to the last bit"
    assert len({tuple(one) for one in losses[BASELINE]}) == SETTINGS.ranks, "ranks must see different data"


@needs_network
@pytest.mark.timeout(240)
def test_the_interface_counts_what_the_formulas_say(found):
    passes = {"ddp": 2, "zero1": 2, "zero2": 2, "zero3": 3, "zero3-keep": 2}
    # gloo's own reduce-scatter is an all-reduce inside.
    peers = {"torch-ddp": 2, "torch-zro": 3, "fsdp2": 4, "fsdp2-keep": 3}
    for name, times in (passes | peers).items():
        want = times * 4 * SETTINGS.params * (SETTINGS.ranks - 1) // SETTINGS.ranks
        got = found["watched"][name][0]
        assert want < got["wire_bytes"] < 1.03 * want, name
        if MODES[name].ours:
            sent = sum(got[kind] for kind in ("sent_bytes", "padding_bytes", "metadata_bytes"))
            assert got["sent_bytes"] == want and sent < got["wire_bytes"] < 1.03 * sent


@pytest.mark.timeout(240)
def test_sharded_states_are_sharded_for_us_and_for_peers(found):
    held = {name: found["watched"][name][0] for name in TORCH}
    states, stages = 4 * SETTINGS.params, ("ddp", "zero1", "zero2", "zero3")
    half = states // SETTINGS.ranks
    assert [held[name]["optimizer_bytes"] for name in stages] == [2 * states] + 3 * [2 * half]
    assert [held[name]["gradients_bytes"] for name in stages] == [states, states, half, half]
    assert [held[name]["parameters_bytes"] for name in stages] == [states, states, states, half]
    assert held["fsdp2"]["parameters_bytes"] < 0.51 * states and held[BASELINE]["parameters_bytes"] == states
    assert held["torch-zro"]["optimizer_bytes"] < 1.1 * states


@pytest.mark.timeout(240)
def test_the_heap_peak_is_above_what_tensors_show_and_of_this_mode_alone(found, compiled):
    for name in TORCH:
        got = found["watched"][name][0]
        assert got["heap_peak_bytes"] > 0.9 * got["peak_bytes"], name
        assert got["heap_peak_bytes"] < 2 * got["peak_bytes"] + 2**20, f"{name} counts something that is not its own"


@pytest.mark.timeout(240)
def test_every_mode_ran_every_round_in_one_race(found):
    assert [set(race) for race in found["races"]] == [{*TORCH, AGAIN, ALONE}]
    spent = [step for steps in found["races"][0].values() for step in steps]
    assert all(len(steps) == SETTINGS.rounds for steps in found["races"][0].values())
    assert all(clock > 0 and processor > 0.9 * main > 0 and faults >= 0 for clock, processor, main, faults in spent)


@pytest.mark.timeout(240)
def test_the_hooks_cost_is_measured(found):
    assert set(found["hooks"]) == {"ddp", "zero1", "zero2", "zero3"}
    for costs in found["hooks"].values():
        assert costs["a_unit"] + costs["a_parameter"] > 0 and 0 < costs["example"] < 100_000


@pytest.mark.timeout(240)
def test_the_command_prints_one_object_and_writes_three_files(found, modes, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench, "measure", lambda settings, modes, quiet: found)
    assert cli.main(["bench", "--quick", "--json", "--modes", ",".join(TORCH), "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is True and list(said["modes"]) == TORCH
    for name, got in said["modes"].items():
        for count in COUNTS:
            assert len(got[count]) == SETTINGS.ranks, (name, count)
            assert all(one is None or type(one) is int for one in got[count]), (name, count)
        assert got["total_bytes"] == [sum(kinds) for kinds in zip(*(got[count] for count in COUNTS[:3]))]
        assert len(got["losses"]) == SETTINGS.steps and got["step_seconds"] > 0
        assert got["processor_seconds"] > 0 and got["page_faults"] >= 0
    assert set(said["modes"]["zero3"]["ratios"]) == {BASELINE, "fsdp2"}
    assert said == json.loads((tmp_path / "bench.json").read_text())
    assert said["profile"][ALONE]["processor_seconds"] > 0 and said["many_units"] is None, "the floor is there"
    text = (tmp_path / "report.md").read_text()
    assert alt_text(modes, said) in text and "bench.png" in text
    assert (tmp_path / "bench.png").stat().st_size > 10_000
    assert all(f"{name} " in alt_text(modes, said) for name in TORCH)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("bench.json", "report.md", "bench.png")]


@pytest.mark.timeout(240)
def test_a_mode_that_trains_wrongly_fails_the_bench(found, monkeypatch, capsys, tmp_path):
    settings, two = dataclasses.replace(SETTINGS, plant="zero2"), [MODES["zero2"], MODES[BASELINE]]
    watched = runner.watch_all(settings, {"zero2": None, BASELINE: 25}, private=False, quiet=True)
    planted = found | {"watched": watched, "heap": False, "private": False}
    summary = summarise(settings, two, planted, {})
    assert not summary["ok"] and [one.partition(":")[0] for one in summary["wrong"]] == ["zero2, losses"]
    monkeypatch.setattr(bench, "measure", lambda settings, modes, quiet: planted)
    assert cli.main(["bench", "--quick", "--modes", "zero2", "--out", str(tmp_path)]) == 1
    assert "WRONG zero2, losses" in capsys.readouterr().out


@pytest.mark.timeout(120)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_nothing_is_left_when_the_command_is_killed(tmp_path):
    (temporary := tmp_path / "temporary").mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ZEROCOURSE_TEST_MARK": str(tmp_path), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "zerocourse", "bench", "--quick", "--json", "--modes", "zero1",
               "--out", str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def ours() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"ZEROCOURSE_TEST_MARK={tmp_path}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                pass
        return found

    wait_until(lambda: len(ours()) >= 4, 60)  # the command, the runner, its cleanup process and its fork server
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not ours(), 15)
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []  # torch's cache


def wait_until(true, seconds: float) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds
        time.sleep(0.1)


# the verdict

def races(**seconds):
    """Twice as much processor time as time: two ranks that never wait, half of it in communication threads."""
    return [{name.replace("_", "-"): [(second, 2 * second, second, 10) for second in taken]
             for name, taken in seconds.items()}]


def test_a_ratio_is_of_pairs_in_a_round_and_not_of_medians():
    race = races(zero3=[1, 2, 10], fsdp2=[2, 4, 5])
    assert ratio(race, "zero3", "fsdp2").median == 0.5 and ratio(race, "fsdp2", "zero3").median == 2
    assert ratio(race, "zero3", "zero1") is None
    both = ratio(race + races(zero3=[3], fsdp2=[1]), "zero3", "fsdp2")
    assert both.rounds == 4 and both.median == 1.25
    waits = [{"zero3": [(1, 5, 0, 0), (2, 1, 0, 0), (3, 1, 0, 0)], "fsdp2": [(1, 1, 0, 0), (1, 2, 0, 0), (1, 2, 0, 0)]}]
    assert ratio(waits, "zero3", "fsdp2").median == 2 and ratio(waits, "zero3", "fsdp2").processor == 0.5


def test_the_profile_is_of_one_rank_and_begins_with_the_floor():
    two = races(torch_ddp=[4, 6, 5], again=[9, 9, 9], alone=[3, 3, 3]) + races(torch_ddp=[5, 5, 5], zero3=[7, 7, 7])
    assert profiles(two, ranks=2) == {ALONE: Profile(3, 3, 1.5, 1.5, 5), BASELINE: Profile(5, 5, 2.5, 2.5, 5),
                                      "zero3": Profile(7, 7, 3.5, 3.5, 5)}
    uneven = [{"zero3": [(10, 12, 8, 6)] * 3}]
    assert profiles(uneven, ranks=2) == {"zero3": Profile(10, 6, 4, 2, 3)}, "all but the main thread"
    assert profiles([], ranks=2) == {} and where_time_goes({}) == []


def test_a_machine_that_disagrees_with_itself_is_too_noisy():
    steady, base = [1.0, 1.01, 0.99, 1.0, 1.02], [1.0] * 5
    assert noise(races(torch_ddp=base, again=steady)) == []
    assert "too noisy" in noise(races(torch_ddp=base, again=[0.7, 1.0, 1.3, 0.8, 1.2]))[0], "scattered"
    assert "too noisy" in noise(races(torch_ddp=base, again=[1.1] * 5))[0], "steady, and wrong"
    assert "only 3 rounds" in noise(races(torch_ddp=base[:3], again=steady[:3]))[0]
    one_of_two = races(torch_ddp=base, again=steady, zero1=base) + races(torch_ddp=base, again=[1.2] * 5, fsdp2=base)
    assert "too noisy" in noise(races(torch_ddp=base, again=[math.nan] * 5))[0], "and NaN is nothing to judge by"
    assert len(noise(one_of_two)) == 1 and "fsdp2" in noise(one_of_two)[0]


@pytest.mark.timeout(240)
def test_the_table_says_when_times_cannot_be_judged(found, modes):
    rounds = {name: [(1.0, 2.0, 1.6, 8)] * 5 for name in (*TORCH, AGAIN)} | {ALONE: [(0.75, 1.5, 1.5, 0)] * 5}
    quiet = found | {"races": [rounds]}
    text = table(SETTINGS, modes, summarise(SETTINGS, modes, quiet, {}))
    assert "times can be judged" in text and "TOO NOISY" not in text
    assert "alone" in text and "0.75 of zero2's" in " ".join(text.split())
    profile = [line.split() for line in text.splitlines()]
    assert ["alone", "750", "750", "0"] in profile and ["zero3", "1000", "800", "200"] in profile
    rows = {line[0]: line for line in profile if line and line[0] in TORCH and "unit" in line}
    assert all(["1000", "1000", "4"] == line[line.index("1000") : line.index("1000") + 3] for line in rows.values())
    floor = next(line for line in profile if line[:2] == ["compute", "alone"] and "750" in line)
    assert floor[floor.index("750") :] == ["750", "750", "0", "-", "-", "-"], "the floor is beside the modes"
    assert sum(line[:1] == [AGAIN] for line in profile) == 0, "the control is no mode"
    noisy = found | {"races": [rounds | {AGAIN: [(second, 2.0, 1.6, 8) for second in (0.8, 1.2, 0.7, 1.3, 1.0)]}]}
    summary = summarise(SETTINGS, modes, noisy, {})
    text = table(SETTINGS, modes, summary)
    assert "TOO NOISY" in text and "times can be judged" not in text
    assert summary["ok"], "a noisy machine is no fault of the program"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("count, what", [
    ("parameters_bytes", "parameters_bytes"), ("gradients_bytes", "gradients_bytes"),
    ("optimizer_bytes", "optimizer_bytes"), ("sent_bytes", "sent"), ("wire_bytes", "wire")])
def test_a_number_of_ours_that_is_off_fails_by_name(found, modes, count, what):
    off = copy.deepcopy(found["watched"])
    got = off["zero2"][0]
    if got[count] is None:
        pytest.skip("not metered here")
    got[count] += got[count] // 10
    assert [(check.mode, check.what) for check in checks(SETTINGS, modes, off) if not check.ok] == [("zero2", what)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", [0, 3, SETTINGS.steps - 1])
@pytest.mark.parametrize("name", ["zero2", "fsdp2", BASELINE])
def test_a_loss_that_is_nan_fails_by_name(found, modes, name, step):
    broken = copy.deepcopy(found["watched"])
    broken[name][1]["losses"][step] = math.nan
    red = [(check.mode, check.what) for check in checks(SETTINGS, modes, broken) if not check.ok]
    assert red == [(mode, "losses") for mode in (TORCH if name == BASELINE else [name])]


@pytest.mark.timeout(240)
def test_what_cannot_be_metered_is_null_and_said(found, modes):
    bare = copy.deepcopy(found) | {"heap": False, "private": False}
    for ranks in bare["watched"].values():
        for got in ranks:
            got |= {"heap_peak_bytes": None, "wire_bytes": None}
    summary = summarise(SETTINGS, modes, bare, {})
    text = table(SETTINGS, modes, summary)
    assert summary["ok"] and "No heap peak" in text and "No bytes on the wire" in text
    assert summary["modes"]["zero3"]["heap_peak_bytes"] == [None, None] == summary["modes"]["fsdp2"]["sent_bytes"]
    assert summary["modes"]["zero3"]["sent_bytes"] != [None, None], "our own count is there without any meter"


@pytest.mark.timeout(240)
def test_the_picture_can_be_drawn_without_meters_and_times(found, modes, tmp_path):
    bare = copy.deepcopy(found) | {"races": []}
    for got in bare["watched"]["fsdp2"]:
        got["heap_peak_bytes"] = None
    summary = summarise(SETTINGS, modes, bare, {})
    write(tmp_path, table(SETTINGS, modes, summary), modes, summary, {"bench.png": summary})
    assert "zero3 unknown and" in alt_text(modes, summary)


# who is measured with whom

class Still(runner.Bench):
    """A bench that starts no process: a lap of an entrant takes the next of its `seconds`, and one clock tick."""

    def __init__(self, modes: list[BenchMode], room: int, seconds=None, **options):
        settings = dataclasses.replace(SETTINGS, tuning_rounds=3, **options)
        super().__init__(settings, modes, watch=None, quiet=True)
        self.bytes, self.seconds, self.alive, self.turns, self.most = room, seconds, [], [], 0

    def room(self) -> int:
        return self.bytes

    def entrant(self, mode: str, bucket: int | None):
        still, key = self, (mode, bucket)

        class Quiet:
            def __init__(self):
                self.left = iter(still.seconds[key] if still.seconds else [1] * 99)
                still.alive.append(self)
                still.most = max(still.most, len(still.alive))

            def lap(self):
                still.turns.append(mode)
                return [next(self.left), 2, 1, 0]

            def close(self):
                still.alive.remove(self)

        return Quiet()


@pytest.fixture(autouse=True)
def no_processes(monkeypatch, request):
    """Entrants of a `Still` bench are quiet."""
    if "still" in request.fixturenames:
        bench_of = request.getfixturevalue("still")
        monkeypatch.setattr(runner, "Entrant", lambda settings, mode, bucket: bench_of[-1].entrant(mode, bucket))


@pytest.fixture
def still():
    """A list into which a test puts its bench; the last one's entrants are used."""
    return []


def test_the_fastest_bucket_size_is_taken(still):
    seconds = {(BASELINE, 4): [3, 3, 3], (BASELINE, 25): [5, 2, 5], (BASELINE, 100): [1, 2, 9]}
    for room, most in ((10**12, 3), (1, 1)):
        still.append(Still([MODES[BASELINE]], room, seconds))
        assert still[-1].tune(MODES[BASELINE]) == {4: 3, 25: 5, 100: 2} and still[-1].buckets[BASELINE] == 100
        assert still[-1].most == most and not still[-1].alive, "one after the other, where memory is short"


def test_a_race_has_the_modes_the_floor_and_the_baseline_twice(still):
    still.append(Still([MODES["zero2"], MODES[BASELINE]], 10**12))
    race = still[-1].race(["zero2", BASELINE])
    assert list(race) == ["zero2", BASELINE, ALONE, AGAIN]
    assert {len(laps) for laps in race.values()} == {SETTINGS.rounds}
    one = ["zero2", BASELINE, ALONE, BASELINE]
    assert still[-1].turns == one + one[1:] + one[:1] and not still[-1].alive


def test_rounds_stop_at_the_deadline_but_one_is_always_run(still):
    still.append(Still([MODES["zero2"], MODES[BASELINE]], 10**12, budget=1e-9))
    time.sleep(0.01)
    assert {len(laps) for laps in still[-1].race(["zero2", BASELINE]).values()} == {1}


def test_a_rank_that_fails_leaves_no_entrant_behind(still):
    still.append(Still([MODES[BASELINE]], 10**12, {(BASELINE, 25): [1], (ALONE, None): [1]}))
    with pytest.raises(StopIteration):  # the second lap fails
        still[-1].race([BASELINE])
    assert not still[-1].alive


@pytest.mark.parametrize("room", [10**12, 4, 1])
def test_who_is_compared_races_together_whatever_fits(room):
    few = Still(list(MODES.values()), room * (1 + runner.PROCESS_BYTES) + 16 * SETTINGS.params)
    few.held = dict.fromkeys(MODES, 1)
    groups = [set(group) for group in few.groups()]
    assert all(BASELINE in group for group in groups) and set().union(*groups) == set(MODES)
    for mode in MODES.values():
        assert all(any({mode.name, peer} <= group for group in groups) for peer in mode.matches)
    assert len(groups) == 1 if room > 100 else max(map(len, groups)) <= max(room, 3)


USERS = """
import ctypes, gc, os, torch

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def given_back(tensors):
    before = resident()
    del tensors[:]
    return before - resident()

{"meter": hasattr(ctypes.CDLL(None), "heap_peak"), "collects": gc.isenabled(), "threads": torch.get_num_threads(),
 "settings": sorted(name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))),
 "given back": given_back([torch.ones(1 << 22)])}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_entrant_is_set_up_as_a_users_process():
    """16 MiB that a step frees go back to the system, as glibc has it; no meter, no settings."""
    entrant = runner.Entrant(SETTINGS, "zero2", None)
    try:
        for found in entrant.ranks.exec(USERS):
            assert found.pop("given back") > 15 << 20
            assert found == {"meter": False, "collects": True, "threads": 1, "settings": []}
        clock, processor, main, faults = entrant.lap()
        assert clock > 0 and processor > 0.9 * main > 0 and type(faults) is int
    finally:
        entrant.close()


def test_many_units_are_measured_beside_unless_it_is_quick(monkeypatch, found, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(bench, "measure", lambda settings, modes, quiet: asked.append(settings) or found)
    monkeypatch.setattr(report, "summarise", lambda settings, *rest: summarise(SETTINGS, *rest))
    monkeypatch.setattr(estimates, "available_bytes", lambda: None)  # nothing is really measured here
    arguments = ["bench", "--json", "--modes", ",".join(TORCH), "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(one.layers, one.width, one.tokens) for one in asked] == [(8, 512, 128), (96, 128, 32)]
    assert said["many_units"]["ok"] and list(said["many_units"]["modes"]) == TORCH
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "report.md", "bench.png", "many_units.png"}
    assert cli.main([*arguments, "--no-many-units"]) == 0 and len(asked) == 3
    assert cli.main([*arguments, "--quick"]) == 0 and len(asked) == 4
    wrong = lambda settings, *rest: summarise(SETTINGS, *rest) | {"ok": settings.layers != 96}  # noqa: E731
    monkeypatch.setattr(report, "summarise", wrong)
    assert cli.main(arguments) == 1, "what is wrong in the second table fails the bench, too"


def test_every_peer_has_three_sizes_and_every_stage_a_peer_of_its_own_and_deepspeeds():
    assert all(len(mode.buckets) == 3 for mode in MODES.values() if not mode.ours)
    for name in ("zero1", "zero2", "zero3"):
        assert f"deepspeed{name[-1]}" in MODES[name].matches and len(MODES[name].matches) == 2
    assert all(peer in MODES and not MODES[peer].ours for mode in MODES.values() for peer in mode.matches)


def test_every_mode_begins_a_round_as_often_as_any_other():
    names = ["ddp", "zero3", AGAIN]
    rounds = [turns(names, number) for number in range(6)]
    assert all(sorted(order) == sorted(names) for order in rounds)
    assert [order[0] for order in rounds] == names * 2


def test_modes_are_those_installed_and_the_baseline_is_always_there():
    def alone(package):
        return package == "torch"

    assert [mode.name for mode in find_modes(None, alone)] == TORCH
    assert [mode.name for mode in find_modes("fsdp2, zero3", alone)] == ["zero3", BASELINE, "fsdp2"]
    with pytest.raises(BadInput, match="deepspeed3.*not installed"):
        find_modes("deepspeed3", alone)


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.timeout(600)
def test_deepspeed_trains_the_same_model():
    names = [f"deepspeed{stage}" for stage in range(4)]
    all_of_them = [MODES[name] for name in (*names, BASELINE)]
    summary = summarise(SETTINGS, all_of_them, runner.measure(SETTINGS, all_of_them, quiet=True), {})
    assert summary["ok"], summary["wrong"]


# the meters

def metered(code: str, library: Path, **environment) -> str:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=60,
                          env=os.environ | {"LD_PRELOAD": str(library), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


COUNTING = """
import ctypes, threading
from zerocourse.bench.meters import Heap
heap, libc, MIB = Heap(), ctypes.CDLL(None), 1 << 20
for name in ("malloc", "calloc", "realloc", "aligned_alloc", "memalign"): getattr(libc, name).restype = ctypes.c_void_p
taken = [libc.malloc(MIB), libc.calloc(4, MIB // 4), libc.aligned_alloc(64, MIB), libc.memalign(4096, MIB)]
other = ctypes.c_void_p()
libc.posix_memalign(ctypes.byref(other), 64, MIB)
before = heap.held()
def say(): print(round((heap.held() - before) / MIB, 2), round((heap.peak() - before) / MIB, 2))
heap.reset_peak()
block = libc.malloc(8 * MIB); say()
block = libc.realloc(ctypes.c_void_p(block), 3 * MIB); say()
worker = threading.Thread(target=lambda: libc.free(ctypes.c_void_p(block))); worker.start(); worker.join(); say()
heap.reset_peak(); say()
for each in (*taken, other.value): libc.free(ctypes.c_void_p(each))
say()
small = [libc.malloc(1000) for _ in range(2000)]; say()
"""


def test_the_heap_meter_counts_every_way_to_take_and_give_back(compiled):
    held, peak = zip(*(map(float, line.split()) for line in metered(COUNTING, compiled).splitlines()), strict=True)
    assert held == pytest.approx([8, 3, 0, 0, -5, -5], abs=0.06), "small blocks are not counted"
    assert peak == pytest.approx([8, 8, 8, 0, 0, 0], abs=0.06)


def test_the_heap_meter_sees_a_tensors_memory_and_the_one_that_an_operation_takes_for_a_moment(compiled):
    code = """
import torch
from zerocourse.bench.meters import Heap
heap = Heap()
torch.ones(10).sum()
before = heap.held(); heap.reset_peak()
big = torch.ones(1 << 20); (big + 1).sum()
print(heap.here, heap.held() - before, heap.peak() - before)
"""
    here, held, peak = metered(code, compiled, OMP_NUM_THREADS="1").split()
    assert here == "True" and 4 << 20 <= int(held) < 4.1 * 2**20 and 8 << 20 <= int(peak) < 8.1 * 2**20


def test_without_a_compiler_there_is_no_heap_meter(monkeypatch, tmp_path):
    monkeypatch.setattr(meters.shutil, "which", lambda name: None)
    assert meters.build_heap_meter(tmp_path) is None and meters.private_network() is None
    heap = meters.Heap()
    assert not heap.here and heap.held() is None and heap.peak() is None


def test_a_source_that_does_not_compile_is_no_meter(monkeypatch, tmp_path):
    (tmp_path / "bad.c").write_text("this is not C")
    monkeypatch.setattr(meters, "SOURCE", tmp_path / "bad.c")
    assert meters.build_heap_meter(tmp_path) is None


@needs_network
def test_a_private_network_has_a_counter_of_its_own():
    code = f"""
import socket, sys, threading
sys.path.insert(0, {str(ROOT)!r})
from zerocourse.bench.meters import bring_loopback_up, loopback_bytes
bring_loopback_up()
first = loopback_bytes()
server = socket.create_server(("127.0.0.1", 0))
def drain():
    peer = server.accept()[0]
    while peer.recv(1 << 20): pass
counts = []
for _ in range(3):  # on a busy machine TCP now and then sends a segment twice: the smallest count is the program's
    before = loopback_bytes()
    reader = threading.Thread(target=drain); reader.start()
    with socket.create_connection(server.getsockname()) as sender: sender.sendall(bytes(10**7))
    reader.join()
    counts.append(loopback_bytes() - before)
print(first, min(counts))
"""
    done = subprocess.run([*PRIVATE, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    before, sent = map(int, done.stdout.split())
    assert before == 0 and 10**7 < sent < 1.01 * 10**7


def test_memory_that_is_available_is_known_on_linux():
    available = available_bytes()
    assert available is None or 0 < available < 2**50
    assert not math.isnan(available or 0)
