"""`zerocourse memory`: the table for people, the object for programs."""

import json
import re

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


# -- generation

LLAMA = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 8192, "tie_word_embeddings": False}


def test_keys_and_values_beside_the_weights(capsys, tmp_path):
    """Llama 3 8B keeps 128 KiB a token (2 · 32 layers · 8 heads · 128 features · 2 bytes)."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    args = ("--model", str(path), "--kv", "--card", "24GiB", "--bandwidth", "300GB")
    out = json.loads(run(capsys, *args, "--json"))
    assert (out["params"], out["token_bytes"], out["request_bytes"]) == (8_030_261_248, 131_072, 2**30)
    assert out["fitting_requests"] == (24 * 2**30 - 2 * 8_030_261_248) // 2**30 == 9
    first, *_, last = out["steps"]
    assert [step["requests"] for step in out["steps"]] == [1, 8, 9]
    read = 2 * (8_030_261_248 - 128_256 * 4096)
    assert first["step_bytes"] == read + 2**30 and abs(first["tokens_per_second"] - 300e9 / (read + 2**30)) < 1e-9
    assert last["tokens_per_second"] == 9 * 300e9 / (read + 9 * 2**30)
    text = run(capsys, *args, "--seq", "4096")
    assert "A token keeps 131 kB of keys and values, and a request of 4,096 tokens 537 MB." in text and "18 such requests fit" in text
    assert "With --bandwidth" in run(capsys, "--model", "gpt2", "--kv")


def test_what_generation_has_no_use_for_is_refused(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    for args, words in ((("--params", "7e9", "--kv"), "without --model"), (("--model", "gpt2", "--kv", "--ranks", "2"), "with --kv"),
                        (("--model", "gpt2", "--bandwidth", "300GB"), "without --kv"),
                        (("--model", str(path), "--kv", "--card", "12GiB"), "the weights of .* take 16.1 GB")):
        assert main(["memory", *args]) == 2
        assert re.search(words, capsys.readouterr().err), args


def test_the_formula_is_what_the_servers_cache_holds():
    from zerocourse.formulas.models.kv_cache import kv_bytes
    from zerocourse.inference.server import Server
    from zerocourse.models.gpt2 import build_model

    server = Server(build_model("gpt2-tiny"), blocks=10, block_size=4)
    assert server.cache.nbytes == kv_bytes(CONFIGS["gpt2-tiny"], 40, element=4)
