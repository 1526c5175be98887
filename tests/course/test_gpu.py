"""The checks of `zerocourse.course.gpu_check` as tests, for one GPU or two: `make test-gpu`. What runs them is tested anywhere."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_checks
import pytest

from zerocourse.course.gpu_check import __main__ as command
from zerocourse.course.gpu_check.check_runner import RESULT, run_checks
from zerocourse.course.gpu_check.table import CHECKS, GpuCheck

ROOT = Path(__file__).parents[2]
MARK = {0: pytest.mark.gpu, 1: pytest.mark.gpu, 2: pytest.mark.gpus2}


@pytest.mark.parametrize("name", [pytest.param(name, marks=(MARK[check.gpus], pytest.mark.timeout(check.seconds + 60)))
                                  for name, check in CHECKS.items()])
def test_on_gpus(name, tmp_path):
    outcome = run_checks([name], tmp_path)["checks"][name]
    assert outcome["status"] == "ok", "\n".join([*outcome["wrong"], json.dumps(outcome["numbers"], indent=1)])


# -- what runs them ----------------------------------------------------------------------------------------------------

TABLE = {name: GpuCheck(getattr(gpu_checks, name), 1 if name == "hangs" else 60) for name in ("wrong", "raises", "dies", "hangs", "good")}
TABLE["compiled"] = GpuCheck(gpu_checks.good, 60, rehearsed=False)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_fails_dies_or_hangs_is_written_down_and_the_next_check_runs(tmp_path):
    told = []
    result = run_checks(list(TABLE), tmp_path, "cpu", tell=told.append, table=TABLE)
    checks = result["checks"]
    assert {name: check["status"] for name, check in checks.items()} == {
        "compiled": "skipped", "wrong": "failed", "raises": "failed", "dies": "failed", "hangs": "failed", "good": "ok"}
    assert checks["wrong"]["numbers"] == {"NaN": "nan", "far": 0.2, "last": 3} and len(checks["wrong"]["wrong"]) == 3
    assert checks["raises"]["numbers"] == {"first": 1} and "ValueError: broken" in checks["raises"]["wrong"][0]
    assert checks["dies"]["numbers"] == {"seen": 1} and "status -6: last words" in checks["dies"]["wrong"][0]
    assert "was not over after 1 s" in checks["hangs"]["wrong"][0] and checks["hangs"]["seconds"] >= 1
    deadline = time.monotonic() + 5
    while is_alive(checks["hangs"]["numbers"]["child"]):
        assert time.monotonic() < deadline, "what a check had started goes on without it"
        time.sleep(0.05)
    assert json.loads((tmp_path / RESULT).read_text()) == result and not result["ok"]
    assert "\n".join(told).count("failed ") == 4 and {path.name for path in tmp_path.iterdir()} == {RESULT}


def test_on_gpus_each_check_has_a_process_of_its_own_and_sees_no_more_than_it_needs(monkeypatch, tmp_path):
    from zerocourse.course.gpu_check import check_runner

    begun = []
    monkeypatch.setattr(check_runner.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    real = subprocess.Popen

    def watched(*args, env, **options):
        begun.append((env["ZEROCOURSE_DEVICE"], env["CUDA_VISIBLE_DEVICES"]))
        return real(*args, env=env, **options)

    monkeypatch.setattr(check_runner.subprocess, "Popen", watched)
    table = {name: GpuCheck(gpu_checks.good, 60, gpus) for name, gpus in (("all", 0), ("one", 1), ("two", 2), ("three", 3))}
    checks = run_checks(list(table), tmp_path, "cuda", tell=lambda line: None, table=table)["checks"]
    assert sorted(begun) == [("cuda", "GPU-a"), ("cuda", "GPU-a,GPU-b"), ("cuda", "GPU-a,GPU-b")]
    assert checks["three"] == {"status": "skipped", "seconds": 0.0, "numbers": {}, "wrong": ["it needs 3 GPUs, and torch sees 2 here"]}
    assert all(checks[name]["status"] == "ok" for name in ("all", "one", "two"))


def test_without_a_gpu_there_is_one_sentence(capsys, tmp_path):
    assert command.main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "torch sees no GPU here, so there is nothing to check: --device cpu --tiny rehearses it\n"
    assert command.main(["one_rnk", "--device", "cpu", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("there is no check 'one_rnk': there are machine, one_rank_sum, ")
    assert not list(tmp_path.iterdir())


def test_make_test_gpu_says_that_nothing_was_tested_where_there_is_none():
    """All of its tests are skipped by name, and the status is not that of a success."""
    recipe = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "--gpu" in line)
    options = recipe.partition(" -m pytest ")[2].replace("$(PYTEST_ARGS)", "").replace('"gpu or gpus2"', "gpu_or_gpus2").split()
    options = ["gpu or gpus2" if option == "gpu_or_gpus2" else option for option in options]
    assert options == ["--gpu", "-m", "gpu or gpus2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ZEROCOURSE_TESTS"))}
    ended = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *options, __file__], cwd=ROOT,
                           env=environment | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert ended.returncode == 5, ended.stdout
    assert f"{len(CHECKS)} skipped" in ended.stdout and "test_on_gpus[nccl_ties] needs two GPUs, and torch sees 0 here" in ended.stdout
    assert ended.stdout.rstrip().endswith("Nothing was tested: torch sees no GPU here.")
