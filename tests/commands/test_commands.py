"""Every command refuses bad input before it works: exit status 2, one sentence; nothing is started or left behind."""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exercise_sets import SETS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from zerocourse import bench
from zerocourse.bench.settings import MODES, BenchSettings
from zerocourse.cli import build_parser, main
from zerocourse.commands import arguments, bench_command, estimates, tour_command
from zerocourse.course.tour import tour
from zerocourse.errors import BadInput, ZeroCourseError
from zerocourse.formulas.transformer import gpt2_step_flops
from zerocourse.formulas.units import gb
from zerocourse.launch.processes.parent import cores
from zerocourse.models.gpt2 import CONFIGS, GPT

ROOT = Path(__file__).parents[2]
BAD = [  # (the words of the command line, what the sentence has)
    ("memory", "one of the arguments --params --model --table1 is required"),
    ("memory --parms 7e9", "there is no option --parms: did you mean --params?"),
    ("memory -params 7e9", "there is no option -params: did you mean --params?"),
    ("memory --param=7e9", "there is no option --param: did you mean --params?"),
    ("memory --params 7e9 --xyz", "there is no option --xyz: there are --help, --json, --params,"),
    ("memory --params -7e9", "--params is -7e9: it must be a positive number"),
    ("memory --params=-7B", "--params is -7B: it must be a positive number"),
    ("memory --params -.5", "--params is -.5: it must be a positive number"),
    ("memory --params -inf", "--params is -inf: it must be a positive number"),
    ("memory --params 0", "--params: '0' is not a count such as 7e9"),
    ("memory --params 1e19", "--params is 1e19: it must be at most 1e+18"),
    ("memory --params 12_parsecs", "--params: '12_parsecs' is not a count"),
    ("memory --params 7e9 --stage 4", "--stage is 4: it must be an integer from 0 to 3"),
    ("memory --params 7e9 --stage -1", "--stage is -1: it must be an integer from 0 to 3"),
    ("memory --params 7e9 --stage two", "--stage is 'two': it must be an integer from 0 to 3"),
    ("memory --params 7e9 --ranks 0", "--ranks is 0: it must be an integer from 1"),
    ("memory --params 7e9 --ranks 1" + 400 * "0", "it must be an integer from 1 to 1000000000"),
    ("memory --params 7e9 --card 12parsecs", "--card: '12parsecs' is not a size in bytes"),
    ("memory --params 7e9 --card 24G", "--card: '24G' is not a size in bytes"),
    ("memory --params 7e9 --card A100", "--card: 'A100' is not a size in bytes such as 24GiB"),
    ("memory --params 7e9 --card -24GiB", "--card is -24GiB: it must be at least 1B"),
    ("memory --params 7e9 --accumulation 0", "--accumulation is 0: it must be"),
    ("memory --params 7e9 --convention 17", "--convention cannot be '17': there are 16, 18, 20, fp32"),
    ("memory --params 7e9 --seq 5", "--seq would change nothing without --model"),
    ("memory --model gpt2 --seq 0", "--seq is 0: it must be"),
    ("memory --model=", "There is no model ''"),
    ("memory --model gpt2-xxl", "did you mean 'gpt2-xl'?"),
    ("memory --model gpt2 --seq 2048", "--seq can be at most 1024 for gpt2, not 2048"),
    ("memory --model gpt2 --micro-batch 0", "--micro-batch is 0: it must be"),
    ("memory --params 7e9 --model gpt2", "not allowed with argument"),
    ("memory --table1 --stage 2 --ranks 4", "--ranks and --stage would change nothing with --table1"),
    ("plan --model gpt2", "the following arguments are required: --cluster"),
    ("plan --model gpt --cluster 8xA100", "there is no model 'gpt': did you mean gpt2?"),
    ("plan --model gpt2 --cluster 8xA10", "there is no cluster '8xA10': did you mean 8xA100?"),
    ("plan --model gpt2 --cluster 8xA100 --batch many", "the batch is 'many': it must be a positive number of samples"),
    ("plan --model gpt2 --cluster 8xA100 --batch 3 --ranks 2 4", "cannot be divided among 2 or 4 ranks"),
    ("plan --model gpt2 --cluster 8xA100 --ranks 2 0", "--ranks is 0: it must be an integer from 1"),
    ("plan --model gpt2 --cluster 8xA100 --price -1", "--price is '-1': it must be a positive number of any currency"),
    ("plan --model gpt2 --cluster 8xA100 --card 80", "--card: '80' is not a size in bytes"),
    ("plan --model gpt2 --cluster 8xA100 --disk 1TB --host 1TB", "a disk is given without its rate"),
    ("plan --model gpt2 --cluster 8xA100 --dtype fp8", "--dtype cannot be 'fp8': there are bf16, fp16, fp32"),
    ("tour --steps 2", "--steps is 2: it must be an integer of at least 3"),
    ("tour --steps 1000000", "the standard library has text for"),
    ("tour --data no/such/file", "There is no no/such/file"),
    ("tour --data=", "--data is '': it must name a file or a folder"),
    ("tour --data short.txt", "short.txt has 100 tokens"),
    ("tour --data short.txt --tokens 8 --micro-batch 40", "samples make no batch of world_size x micro_batch"),
    ("tour --data short.txt --tokens 8 --micro-batch 2", "--steps is 8: short.txt has text for 2 steps"),
    ("tour --data wide.npy --tokens 8", "the text has a token 300, and a model of vocab_size = 256 knows 0 to 255"),
    ("tour --model gpt3", "There is no model 'gpt3'"),
    ("tour --nproc 2000", "--nproc is 2000: it can be at most"),
    ("tour --ranks 0", "--ranks is 0: it must be an integer of at least 1"),
    ("tour --micro-batch 0", "--micro-batch is 0: it must be an integer of at least 1"),
    ("tour --micro-batch -1", "--micro-batch is -1: it must be an integer of at least 1"),
    ("tour --tokens 0", "--tokens is 0: it must be an integer of at least 1"),
    ("tour --tokens 1" + 12 * "0", "a window to train on and one to validate on take"),
    ("tour --seed -1", "--seed is -1: it must be an integer from 0"),
    ("tour --out /proc/zerocourse", "--out is /proc/zerocourse, where nothing can be written (No such file"),
    ("tour --out short.txt", "--out is short.txt, where nothing can be written (Not a directory)"),
    ("tour --out short.txt/tour", "--out is short.txt/tour, where nothing can be written (Not a directory)"),
    ("tour --out new/" + 300 * "x", "where nothing can be written (File name too long)"),
    ("tour --out=", "--out is '': it must name a file or a folder"),
    ("tour --micro-bach 2", "there is no option --micro-bach: did you mean --micro-batch?"),
    ("tour now", "unrecognized arguments: now"),
    ("bench --ranks 3", "8 samples does not divide among 3 ranks: it must be a multiple of 3"),
    ("bench --ranks 2000 --batch 2000", "--ranks is 2000: it can be at most"),
    ("bench --quick --ranks 2000", "--ranks is 2000: it can be at most"),
    ("bench --quick --width 13", "--width would change nothing with --quick"),
    ("bench --layers 100000", "--layers is 100000: it must be an integer from 1 to 1000"),
    ("bench --rounds 1" + 400 * "0", "it must be an integer from 1 to 1000000000000000000"),
    ("bench --rounds 0", "--rounds is 0: it must be an integer of at least 1"),
    ("bench --width 100", "width must be at most 64, or a multiple of it, not 100"),
    ("bench --vocab 10", "--vocab is 10: it must be an integer of at least 256"),
    ("bench --threads 100000", "--threads is 100000: it must be an integer from 1"),
    ("bench --budget -1", "--budget is '-1': it must be a positive number of seconds"),
    ("bench --budget nan", "--budget is 'nan': it must be a positive number of seconds"),
    ("bench --modes zero4", "There is no mode 'zero4'"),
    ("bench --modes ,", "',' names no mode: there are ddp,"),
    ("bench --data /no/such/file", "There is no /no/such/file"),
    ("bench --quick --data short.txt", "2 samples make no batch of world_size x micro_batch = 2 x 2"),
    ("bench --tokens 1000000", "a window to train on and one to validate on take"),
    ("bench --quick --data wide.npy", "the text has a token 300"),
    ("bench --out /proc/zerocourse", "--out is /proc/zerocourse, where nothing can be written"),
    ("check 9.9", "there is no exercise '9.9'"),
    ("check 1.1", "there are no exercise notebooks here"),
    ("check mine.ipynb", "mine.ipynb is a notebook: say --answers mine.ipynb"),
    ("check --answers nowhere.ipynb", "nowhere.ipynb cannot be read"),
    ("check --answers short.txt", "short.txt is not a notebook"),
    (f"check --answers {ROOT}/notebooks/00_start_here.ipynb", "has no answers"),
    ("check 5.1 --answers class/ada.ipynb", "class/ada.ipynb has no answer to 5.1: it has 1.1"),
    ("check --folder nowhere", "nowhere is not a folder"),
    ("check --folder empty", "there is no notebook (.ipynb) below empty"),
    ("check --csv x.csv", "--csv would change nothing without --folder"),
    ("check --jobs 2", "--jobs would change nothing without --folder"),
    ("check --folder class --csv /nonexistent/x.csv", "/nonexistent/x.csv, which cannot be written (No such file"),
    ("check --folder class --csv class", "--csv is class, which cannot be written (it is a folder)"),
    ("check --folder class --csv /proc/x.csv", "--csv is /proc/x.csv, which cannot be written"),
    ("check --folder class --csv class/ada.ipynb", "--csv is class/ada.ipynb, which is one of the notebooks"),
    ("check --folder class --jobs 0", "--jobs is 0: it must be an integer from 1"),
    ("check --folder class --jobs 100000", "--jobs is 100000: it must be an integer from 1"),
    ("check --seconds 0", "--seconds is '0': it must be a positive number of seconds"),
    ("check --seconds nan", "--seconds is 'nan': it must be a positive number of seconds"),
    ("check --seconds -inf", "--seconds is '-inf': it must be a positive number of seconds"),
    ("check --memory 4G", "--memory: '4G' is not a size"),
    ("check --memory 1B", "--memory is 1B: it must be at least 512MiB"),
    ("list 77", "chapter 77 has no exercises"),
    ("list -5", "chapter is -5: it must be an integer of at least 0"),
    ("list five", "chapter is 'five': it must be an integer of at least 0"),
    ("lst", "there is no command 'lst': did you mean list?"),
]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """The working folder, with files to be wrong about. No process may start, and nothing may change in it."""
    here, temporary = tmp_path / "desk", tmp_path / "temporary"
    for folder in (here / "class", here / "empty", temporary):
        folder.mkdir(parents=True)
    (here / "short.txt").write_bytes(bytes(100))
    np.save(here / "wide.npy", np.full(5000, 300, np.uint16))
    (here / "class" / "ada.ipynb").write_bytes(SETS["01_memory_math"].read_bytes())
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    before = held(tmp_path)
    yield here
    assert held(tmp_path) == before


def held(folder: Path) -> dict[str, bytes | None]:
    """What is in a folder: path → its bytes, None for a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def refused(capsys, words: list[str]) -> str:
    """The sentence with which a command line is refused."""
    began = time.monotonic()
    assert main(words) == 2
    assert time.monotonic() - began < 20
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1 and said.err.startswith("zerocourse") and said.err.endswith("\n")
    return said.err


@pytest.mark.parametrize("line, words", BAD, ids=[line[:60] for line, _ in BAD])
def test_bad_input_is_one_sentence_before_any_work(capsys, desk, line, words):
    assert words in refused(capsys, [*line.split(), "--json"])


def test_a_refused_command_leaves_no_process(tmp_path, survivors):
    """From outside, as a user meets it."""
    mark = uuid.uuid4().hex
    done = subprocess.run([sys.executable, "-m", "zerocourse", "tour", "--out", "/proc/zerocourse", "--json"],
                          env=os.environ | {"MARK": mark, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, timeout=60,
                          capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout and "--out is /proc/zerocourse" in done.stderr
    assert done.stderr.count("\n") == 1 and not list(tmp_path.iterdir()) and not survivors(mark, 2)


def test_a_reader_that_has_seen_enough_is_no_error():
    """`zerocourse list | head -1`: the reader goes before all is written."""
    done = subprocess.run(f"{sys.executable} -m zerocourse list | sleep 0; exit ${{PIPESTATUS[0]}}", shell=True, timeout=60,
                          executable="/bin/bash", env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_every_option_of_every_command_that_takes_a_number_or_a_path_is_checked():
    """One that is plain text is checked by the command, and named here."""
    commands = build_parser()._subparsers._group_actions[0].choices
    plain = {(name, action.option_strings[-1]) for name, parser in commands.items() for action in parser._actions
             if action.option_strings and action.nargs != 0 and not action.choices
             and not isinstance(action, arguments.Checked)}
    assert plain == {("config", "--auto"), ("config", "--model"), ("memory", "--model"), ("tour", "--model"), ("train", "--model"),
                     ("bench", "--modes"), ("simulate", "--model"), ("simulate", "--cluster"), ("plan", "--model"), ("plan", "--cluster"),
                     ("plan", "--batch")}


def test_an_option_may_be_written_as_before(capsys):
    assert main(["memory", "--params=7e9", "--card", "80GiB"]) == 0
    assert "85.9 GB (80.0 GiB)" in capsys.readouterr().out
    assert main(["memory", "--help"]) == 0 and "--card" in capsys.readouterr().out


# outputs

def test_outputs_that_can_be_written_are_left_as_they_were(desk):
    for folder in (Path("new/and/deep"), Path("class"), desk / "new"):
        arguments.check_folder(folder, "--out")
    for file in (Path("grades.csv"), Path("short.txt"), Path("/dev/null")):
        arguments.check_file(file, "--csv")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_noticed(desk, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: open("/dev/full", "wb", buffering=0))
    with pytest.raises(BadInput, match="No space left"):
        arguments.check_folder(Path("new"), "--out")


# what a run would take

@pytest.fixture
def machine(monkeypatch):
    """`machine(flops, memory)`: a machine of that many operations a second a core, and bytes that are free."""
    def of(flops: float = 1e11, memory: int | None = None):
        monkeypatch.setattr(estimates, "matmul_flops", lambda: flops)
        monkeypatch.setattr(estimates, "available_bytes", lambda: memory)
    return of


def test_a_tour_too_large_for_the_memory_is_refused(capsys, desk, machine):
    machine(memory=300_000_000)
    ranks = tour_command.estimates(tour.TourSettings(replace(CONFIGS["gpt2-laptop"], block_size=64)))[0].rank_bytes
    said = refused(capsys, ["tour"])
    assert f"would take about {gb(ranks)}, and this machine has 300 MB free: lower --tokens" in said


def test_a_tour_counts_what_all_ranks_hold(capsys, desk, machine):
    machine(memory=500_000_000)  # enough for the one process, and for one rank
    assert "per rank), and this machine has 500 MB free" in refused(capsys, ["tour"])


def test_a_tour_that_would_not_end_in_time_is_refused(capsys, desk, machine):
    machine()
    said = refused(capsys, ["tour", "--tokens", "5000"])
    assert "about 33 minutes on this machine, and it is stopped after 15 minutes: lower --steps, --tokens" in said


def test_a_bench_too_large_for_the_memory_is_refused(capsys, desk, machine):
    machine(memory=10**9)
    assert "would take about 1.27 GB (636 MB per rank)" in refused(capsys, ["bench", "--quick"])
    assert "this machine has 1.00 GB free: lower --layers" in refused(capsys, ["bench", "--modes", "zero3"])


def test_a_bench_that_would_not_end_in_time_is_refused(capsys, desk, machine):
    machine(flops=1e8)
    assert "it is stopped after 30 minutes: lower --layers" in refused(capsys, ["bench"])


@pytest.mark.parametrize("module, line", [(tour, "tour --steps 200"), (bench, "bench --modes zero3 --rounds 100")])
def test_a_long_run_says_so_before_it_begins(capsys, desk, machine, monkeypatch, module, line):
    def measure(*_, **__):
        raise ZeroCourseError("begun")

    machine()
    monkeypatch.setattr(module, "measure", measure)
    assert main([*line.split(), "--json"]) == 1
    said = capsys.readouterr()
    first, second = said.err.splitlines()
    assert "this will take about" in first and " minutes, and " in first and " per rank" in first
    assert second.endswith("begun") and not said.out
    assert main([line.split()[0], *(["--quick"] if module is bench else [])]) == 1
    assert "this will take" not in capsys.readouterr().err


def test_a_machine_that_does_not_say_its_memory_is_not_refused(capsys, desk, machine):
    machine(memory=None)
    estimates.check_memory(estimates.Estimate(10**18, 2, 1.0), "")


def test_ranks_without_a_core_for_each_take_turns(machine):
    machine(flops=1e9)
    one, crowd = (estimates.step_seconds(10**9, 10**6, ranks) for ranks in (1, 3 * cores()))
    assert crowd == pytest.approx(3 * one) and one == pytest.approx(1 / estimates.EFFICIENCY + 0.01)
    assert estimates.step_seconds(10**9, 0, 1, threads=cores()) == pytest.approx(1 / estimates.EFFICIENCY / cores())


def test_the_speed_of_this_machine_is_measured():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert 1e8 < estimates.matmul_flops() < 1e13 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("seconds, words", [
    (1, "1 seconds"), (119, "119 seconds"), (120, "2 minutes"), (7100, "118 minutes"), (7200, "2 hours"),
    (10**6, "12 days")])
def test_durations_are_said_in_one_unit(seconds, words):
    assert estimates.duration(seconds) == words


def test_the_operations_of_a_step_are_those_that_torch_counts():
    """The formula also counts 6 a token for parameters that multiply nothing: positions, biases, LayerNorms."""
    config = replace(CONFIGS["gpt2-mini"], block_size=32)
    model, tokens_BT = GPT(config), torch.zeros(2, 32, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the only one that it counts
        model(tokens_BT, tokens_BT).backward()
    formula = gpt2_step_flops(config.params, config.n_layer, config.n_embd, 2, 32)
    assert 0.97 < counter.get_total_flops() / formula <= 1.0


def test_a_mode_that_shards_adds_less_to_what_a_bench_holds():
    settings = BenchSettings()
    only, sharded, whole = (bench_command.estimated_bytes(settings, [MODES["torch-ddp"], *map(MODES.get, names)])
                            for names in ((), ("zero3",), ("ddp",)))
    assert only < sharded < whole


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is of Linux")
@pytest.mark.parametrize("words, who", [("list", "zerocourse list"), ("list --json", "zerocourse list"), ("--help", "zerocourse"),
                                        ("memory --params 1e6 --ranks 2", "zerocourse memory")])
def test_a_full_stdout_is_one_sentence(words, who):
    with FULL.open("w") as full:
        ended = subprocess.run([sys.executable, "-m", "zerocourse", *words.split()], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (2, f"{who}: stdout cannot be written: No space left on device\n")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is of Linux")
def test_a_full_stdout_ends_a_script(tmp_path):
    (tmp_path / "script.py").write_text("print('hello')\n")
    with FULL.open("w") as full:
        ended = subprocess.run([sys.executable, "-m", "zerocourse", "run", "--nproc", "1", str(tmp_path / "script.py")], stdout=full,
                               stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (2, "zerocourse run: stdout cannot be written: No space left on device\n")


def test_run_names_what_is_missing_and_how_many_ranks_there_can_be(capsys, tmp_path):
    assert main(["run"]) == 2
    assert capsys.readouterr().err == "zerocourse run: the following arguments are required: SCRIPT\n"
    assert main(["run", "--nproc", "1000", __file__]) == 2
    assert "--nproc is 1000: it can be at most" in capsys.readouterr().err
