"""`zerocourse memory`: the table for people, the object for programs."""

import json

from zerocourse.cli import main
from zerocourse.formulas.peak import gpt2_peak_bytes
from zerocourse.formulas.states import model_states, paper_table1
from zerocourse.models.gpt2 import CONFIGS

GB = 10**9
XL = CONFIGS["gpt2-xl"].params


def run(capsys, *args) -> str:
    assert main(["memory", *args]) == 0
    return capsys.readouterr().out


def test_command_json(capsys):
    out = json.loads(run(capsys, "--params", "7e9", "--stage", "3", "--ranks", "8", "--json"))
    assert out == {"params": 7 * GB, "stage": 3, "ranks": 8, "parameters_bytes": 1_750_000_000,
                   "gradients_bytes": 1_750_000_000, "optimizer_bytes": 10_500_000_000, "total_bytes": 14 * GB,
                   "peak_bytes": None, "sent_bytes": 2 * 3 * 7 * GB * 7 // 8}
    assert all(type(value) in (int, type(None)) for value in out.values())
    fp32 = json.loads(run(capsys, "--params", "1000", "--stage", "2", "--ranks", "4", "--convention", "fp32",
                          "--accumulation", "3", "--json"))
    assert fp32["total_bytes"] == 4000 + 3000 and fp32["sent_bytes"] == 4 * (3 + 1) * 750


def test_command_with_a_model(capsys):
    args = ("--model", "gpt2-xl", "--stage", "2", "--ranks", "2", "--micro-batch", "4", "--seq", "512",
            "--recompute", "none")
    out = json.loads(run(capsys, *args, "--json"))
    assert out["params"] == XL and out["total_bytes"] == model_states(XL, 2, 2).total_bytes
    assert out["peak_bytes"] == gpt2_peak_bytes(CONFIGS["gpt2-xl"], 2, 2, 4, 512, recompute="none")
    default = json.loads(run(capsys, "--model", "gpt2", "--json"))
    assert default["peak_bytes"] == gpt2_peak_bytes(CONFIGS["gpt2"], 3, 8, 1, 1024)
    four = json.loads(run(capsys, "--model", "gpt2", "--accumulation", "4", "--json"))
    assert four["peak_bytes"] == gpt2_peak_bytes(CONFIGS["gpt2"], 3, 8, 1, 1024, accumulated=True)
    assert four["peak_bytes"] > default["peak_bytes"]


def test_command_text(capsys):
    lines = run(capsys, "--params", "7e9", "--stage", "3", "--ranks", "8").splitlines()
    stages = {line[2:15].strip(): line for line in lines[3:7]}
    assert [name for name, line in stages.items() if line.startswith(">")] == ["ZeRO-3"]
    assert "14.0 GB (13.0 GiB)" in stages["ZeRO-3"] and stages["ZeRO-3"].endswith("fits")
    assert "112 GB (104 GiB)" in stages["data parallel"] and stages["data parallel"].endswith("too large")
    assert [line.count("#") for line in stages.values()] == [20, 7, 5, 2]
    assert "7,000,000,000 need 5 ranks or more" in lines[8]
    assert run(capsys, "--params", "7e9", "--card", "14GB").count("fits") == 1
    assert run(capsys, "--params", "7e9", "--card", "13.99GB").count("fits") == 0
    assert "need a larger card on any number" in run(capsys, "--params", "7e9", "--stage", "0")


def test_command_table_1(capsys):
    out = run(capsys, "--table1")
    assert "31.41 / 16.64 / 1.88" in out and "4187.5 / 2218.75 / 250" in out
    table = json.loads(run(capsys, "--table1", "--json"))
    assert table["64"]["7.5B"] == list(paper_table1()[64]["7.5B"])
