"""The formulas against the papers, against each other, and against claims that circulate."""

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zerocourse.errors import BadInput
from zerocourse.formulas.activations import head_activation_bytes, layer_activation_bytes, tensor_parallel_elements
from zerocourse.formulas.estimators import accelerate_bytes, deepspeed_host_bytes, deepspeed_zero2_gpu_bytes, deepspeed_zero3_gpu_bytes
from zerocourse.formulas.peak import gpt2_peak_bytes, states_peak
from zerocourse.formulas.shares import padded_elements, shard_elements
from zerocourse.formulas.states import CONVENTIONS, Convention, fewest_ranks, largest_params, model_states, paper_table1
from zerocourse.formulas.transformer import gpt2_block_params, gpt2_params
from zerocourse.formulas.volumes import bus_factor, passes, sent_bytes, sent_elements
from zerocourse.layout.rankmap import Layout
from zerocourse.models.gpt2 import CONFIGS

GB, GIB = 10**9, 2**30
XL = CONFIGS["gpt2-xl"].params
conventions = st.sampled_from(list(CONVENTIONS.values()))
stages, ranks_, params_ = st.integers(0, 3), st.integers(1, 100), st.integers(1, 10**6)


def total(params, stage, ranks, convention="16"):
    return model_states(params, stage, ranks, CONVENTIONS[convention]).total_bytes


# --- model states ---

def test_the_formulas_of_section_5():
    P, N = 7_500_000_000, 64
    assert [total(P, stage, N) for stage in range(4)] == [
        16 * P, 4 * P + 12 * P // N, 2 * P + 14 * P // N, 16 * P // N]
    states = model_states(P, 2, N)
    assert (states.parameters_bytes, states.gradients_bytes, states.optimizer_bytes) == (
        2 * P, 2 * P // N, 12 * P // N)


PUBLISHED = """
1     120/120/120     2048/2048/2048  16000/16000/16000
4     52.5/41.3/30    896/704/512     7000/5500/4000
16    35.6/21.6/7.5   608/368/128     4750/2875/1000
64    31.4/16.6/1.88  536/284/32      4187/2218/250
256   30.4/15.4/.47   518/263/8       4046/2054/62.5
1024  30.1/15.1/.12   513/257/2       4011/2013/15.6
"""


def test_table_1():
    """The paper rounds its first column and truncates the others: no cell is further off than that."""
    computed = paper_table1()
    rows = [line.split() for line in PUBLISHED.strip().splitlines()]
    assert [int(row[0]) for row in rows] == list(computed)
    for row in rows:
        for name, cell in zip(("7.5B", "128B", "1T"), row[1:], strict=True):
            for nbytes, published in zip(computed[int(row[0])][name], cell.split("/"), strict=True):
                gap = abs(nbytes / GB - float(published))
                assert gap <= 0.875 and gap <= 0.025 * float(published), (row[0], name, published)


def test_plain_fp32_adam():
    P, N = 1000, 4
    assert [total(P, stage, N, "fp32") for stage in range(4)] == [
        16 * P, 8 * P + 8 * P // N, 4 * P + 12 * P // N, 16 * P // N]
    assert [total(P, 0, N, name) for name in ("fp32-sgd", "fp32-momentum")] == [8 * P, 12 * P]


@settings(deadline=None)
@given(params_, ranks_, conventions)
def test_stages_only_ever_save(params, ranks, convention):
    held = [model_states(params, stage, ranks, convention) for stage in range(4)]
    totals = [states.total_bytes for states in held]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] == params * sum(convention.sizes)
    assert ranks * totals[3] >= totals[0] > ranks * totals[3] - ranks * sum(convention.sizes)  # all of it, once, padded
    if ranks == 1:
        assert len(set(totals)) == 1  # one rank shards nothing
    assert all(type(value) is int for states in held for value in (states.parameters_bytes, states.total_bytes))


def test_a_shard_with_more_padding():
    assert model_states(10, 3, 4, shard=5).total_bytes == 5 * 16
    assert model_states(10, 1, 4, shard=5).total_bytes == 10 * 4 + 5 * 12
    assert model_states(10, 3, 4).total_bytes == 3 * 16
    assert sent_elements(10, 1, 4, shard=5) == 2 * 3 * 5


@settings(deadline=None)
@given(st.integers(0, 10**6), stages, ranks_, conventions)
def test_largest_params_is_the_edge(card, stage, ranks, convention):
    largest = largest_params(card, stage, ranks, convention)
    assert model_states(largest + 1, stage, ranks, convention).total_bytes > card
    assert largest == 0 or model_states(largest, stage, ranks, convention).total_bytes <= card


@settings(deadline=None)
@given(params_, stages, st.integers(0, 10**7), conventions)
def test_fewest_ranks_is_the_edge(params, stage, card, convention):
    fewest = fewest_ranks(params, stage, card, convention)
    if fewest is None:
        assert model_states(params, stage, params, convention).total_bytes > card  # more ranks change nothing
    else:
        assert model_states(params, stage, fewest, convention).total_bytes <= card
        assert fewest == 1 or model_states(params, stage, fewest - 1, convention).total_bytes > card


# --- claims that circulate ---

def test_a_seven_billion_need_about_100_gb():
    P = 7 * GB
    assert 14 + 28 + 56 == 98 and P * 4 == 28 * GB  # what the claim adds up, and the master copy it forgets
    assert [total(P, 0, 1, name) for name in ("16", "18", "20")] == [112 * GB, 126 * GB, 140 * GB]
    eighteen = model_states(P, 0, 1, CONVENTIONS["18"])
    assert (eighteen.parameters_bytes, eighteen.gradients_bytes, eighteen.optimizer_bytes) == (
        14 * GB, 28 * GB, (56 + 28) * GB)


def test_b_gpt2_large_needs_only_11_gb():
    states = total(CONFIGS["gpt2-large"].params, 3, 1)
    assert round(states / GB, 1) == 12.4 and round(states / GIB, 1) == 11.5
    assert states == total(CONFIGS["gpt2-large"].params, 0, 1)


def test_c_24_gb_cards_train_gpt2_xl():
    assert [round(total(XL, stage, 2) / GB, 1) for stage in (1, 2, 3)] == [15.6, 14.0, 12.5]
    alone = total(XL, 0, 1)
    assert round(alone / GB, 1) == 24.9 and round(alone / GIB, 1) == 23.2 and round(24 - alone / GIB, 1) == 0.8


def test_d_savings_are_limits():
    P = 64 * 10**6
    assert [100 * (1 - Fraction(total(P, 1, N), 16 * P)) for N in (2, 4)] == [37.5, 56.25]
    assert [round(float(100 * (1 - Fraction(total(P, 1, N), 16 * P))), 1) for N in (8, 64)] == [65.6, 73.8]
    assert [round(16 * P / total(P, 2, N), 2) for N in (2, 4, 8, 64)] == [1.78, 2.91, 4.27, 7.21]
    assert 7.9 < 16 * P / total(P, 2, 1000) < 8


def test_i_number_formats():
    assert torch.finfo(torch.float16).max == 65504
    assert torch.finfo(torch.bfloat16).eps == 2**-7
    assert torch.tensor(1 + 0.003, dtype=torch.bfloat16) == 1
    assert torch.tensor(65536.0).half().isinf()


def test_j_one_and_a_half_billion_in_3_gb():
    P = 1_500_000_000
    assert model_states(P, 0, 1).parameters_bytes == 3 * GB and total(P, 0, 1) == 24 * GB


def test_k_a_trillion_on_64_cards():
    assert total(10**12, 3, 64) == 250 * GB
    assert fewest_ranks(10**12, 3, 32 * GB) == 500
    assert fewest_ranks(10**12, 3, 32 * GIB) == 466
    assert fewest_ranks(10**12, 2, 32 * GB) is None
    assert fewest_ranks(10, 3, 16) == 10 and fewest_ranks(10, 3, 15) is None  # one parameter each, or not even that


def test_l_seven_billion_on_8_cards():
    assert [total(7 * GB, 3, 8, name) / GB for name in ("16", "18", "20")] == [14.0, 15.75, 17.5]


# --- other people's estimators ---

@settings(deadline=None)
@given(params_.map(lambda n: 64 * n), st.sampled_from([1, 2, 8, 64]))
def test_deepspeed_counts_18_and_20(params, ranks):
    assert deepspeed_zero3_gpu_bytes(params, 0, ranks) == total(params, 3, ranks, "18")
    assert deepspeed_zero2_gpu_bytes(params, ranks) == total(params, 2, ranks, "20")
    # Its prose, 4P + 16P/N, is stage 1 of the same 20.
    assert 4 * params + 16 * params // ranks == total(params, 1, ranks, "20")


def test_deepspeed_numbers():
    assert deepspeed_zero2_gpu_bytes(10**9, 8) == 4_250_000_000
    assert deepspeed_zero3_gpu_bytes(10**9, 50_000_000, 8) == 2_450_000_000
    assert deepspeed_host_bytes(10**9, 8) == int(4 * 10**9 * 8 * 1.5)


def test_accelerate_takes_a_maximum():
    assert accelerate_bytes(7 * GB) == 56 * GB and round(56 * GB / GIB, 2) == 52.15
    assert accelerate_bytes(7 * GB, "float32") == total(7 * GB, 0, 1, "fp32")  # there the maximum is the sum


# --- communication ---

@pytest.mark.parametrize("stage, scheme, once, four_times", [
    (0, "zero", 2, 2), (1, "zero", 2, 2), (2, "zero", 2, 5), (3, "zero", 3, 12), (3, "keep", 2, 8),
    (0, "deepspeed", 2, 2), (1, "deepspeed", 3, 3), (2, "deepspeed", 3, 9), (3, "deepspeed", 2, 8),
])
def test_volume(stage, scheme, once, four_times):
    """Multiples of P (N-1)/N elements, with one micro-batch a step and with four."""
    P, N = 1000, 4
    for accumulation, times in ((1, once), (4, four_times)):
        assert sent_elements(P, stage, N, accumulation, scheme) == times * P * (N - 1) // N
        assert passes(stage, accumulation, scheme).total == times
    assert sent_elements(P, stage, 1, 4, scheme) == 0
    assert sent_elements(P + 1, stage, N, 1, scheme) == once * (N - 1) * 251  # a padded shard travels whole


def test_volume_in_bytes():
    assert sent_bytes(1000, 3, 4, convention=CONVENTIONS["16"]) == 3 * 750 * 2
    assert sent_bytes(1000, 3, 4, convention=CONVENTIONS["fp32"]) == 3 * 750 * 4
    assert sent_bytes(1000, 3, 4, convention=CONVENTIONS["18"]) == (2 * 2 + 4) * 750  # gradients in fp32
    assert sent_bytes(1000, 2, 4, 3, "deepspeed") == (1 + 2 * 3) * 750 * 2
    one = Convention("elements", 1, 1, 0)
    assert sent_bytes(1001, 2, 4, 3, convention=one) == sent_elements(1001, 2, 4, 3)


@pytest.mark.parametrize("width, tokens", ((768, 3_456), (8192, 36_864)))
def test_tensor_parallelism_sends_less_than_stage_3_below_four_and_a_half_widths_of_tokens(width, tokens):
    """Per layer, of 12·h² parameters: 8·T·h elements against 36·h²·G, so they are equal at T = 4.5·h·G."""
    for accumulation in (1, 4):
        zero = passes(3, accumulation).total * 12 * width**2
        assert tensor_parallel_elements(1, tokens * accumulation, width, recompute=False) == zero


def test_bus_factors():
    names = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
    assert [bus_factor(name, 4) for name in names] == [Fraction(3, 2), Fraction(3, 4), Fraction(3, 4), Fraction(3, 4), 1, 1]


# --- activations ---

def test_activations_of_a_layer():
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    shape, sbh, scores = (b, s, h, a), s * b * h, Fraction(5 * a * s, h)
    assert layer_activation_bytes(*shape) == sbh * (34 + scores)
    assert layer_activation_bytes(*shape, tensor_parallel=t) == sbh * (10 + Fraction(24, t) + scores / t)
    assert layer_activation_bytes(*shape, t, sequence_parallel=True) == sbh * (34 + scores) / t
    assert layer_activation_bytes(*shape, recompute="selective") == 34 * sbh
    assert layer_activation_bytes(*shape, t, True, "selective") == 34 * sbh // t
    assert layer_activation_bytes(*shape, recompute="full") == 2 * sbh
    assert layer_activation_bytes(*shape, t, recompute="full") == 2 * sbh
    assert layer_activation_bytes(*shape, element=4) == sbh * 66 + 9 * a * s * s * b  # masks stay a byte
    assert head_activation_bytes(b, s, h, 51200) == 4 * sbh * (1 + Fraction(51200, h))


def test_partitioned_checkpoints():
    """The paper's example, 100B on 16: 33 -> 2 GB. By formula that is batch 16; its batch of 32 gives twice as much."""
    def checkpoints(batch, t):
        return 125 * layer_activation_bytes(batch, 1024, 8192, 64, t, sequence_parallel=True, recompute="full")
    assert [round(checkpoints(32, t) / GB, 1) for t in (1, 16)] == [67.1, 4.2]
    assert [round(checkpoints(16, t) / GB) for t in (1, 16)] == [34, 2]
    plain = tensor_parallel_elements(32, 1024, 8192)
    added = tensor_parallel_elements(32, 1024, 8192, partition_checkpoints=True) - plain
    assert added == 32 * 1024 * 8192 and added / plain < 0.1


# --- GPT-2 ---

def test_gpt2_params():
    assert [gpt2_params(*shape) for shape in ((12, 768), (24, 1024), (36, 1280), (48, 1600))] == [
        124_439_808, 354_823_168, 774_030_080, 1_557_611_200]
    assert gpt2_params(12, 768, tied=False) == 163_037_184
    assert gpt2_block_params(1600) == 30_740_800


def test_the_peak_of_gpt2_by_hand():
    """Twelve blocks on four ranks, one micro-batch: what is there when the peak is, at each stage."""
    config, N = CONFIGS["gpt2"], 4
    block = gpt2_block_params(768)
    root = config.params - 12 * block
    states, saved, head = 12, 34 * 2 * 512 * 768, 4 * 2 * 512 * (768 + 50257)
    at_the_loss = 2 * config.params + 12 * saved + head
    assert gpt2_peak_bytes(config, 0, N, 2, 512) == at_the_loss + states * config.params
    assert gpt2_peak_bytes(config, 1, N, 2, 512) == at_the_loss + states * config.params // N
    assert gpt2_peak_bytes(config, 2, N, 2, 512) == at_the_loss + states * config.params // N
    assert gpt2_peak_bytes(config, 3, N, 2, 512) == 2 * root + 12 * saved + head + (2 + states) * config.params // N
    # With a short sequence the peak is at the end: all gradients below stage 2, else two buckets.
    short = [gpt2_peak_bytes(config, stage, N, 1, 8) for stage in range(4)]
    arriving = block * (N - 1) // N  # what the reduction under way receives
    assert short[0] == (2 + 2 + states) * config.params + 2 * arriving
    assert short[1] == 4 * config.params + 2 * arriving + states * config.params // N
    gradients = root + block + 11 * block // N + arriving
    assert short[2] == 2 * config.params + 2 * gradients + states * config.params // N
    assert short[3] == 2 * root + 2 * gradients + (2 + states) * config.params // N


@settings(deadline=None)
@given(st.integers(1, 6), stages, st.integers(1, 9), conventions, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_a_peak_is_never_below_the_model_states(layers, stage, ranks, convention, prefetch, in_flight, accumulated):
    config = replace(CONFIGS["gpt2-tiny"], n_layer=layers)
    peak = gpt2_peak_bytes(config, stage, ranks, 1, 8, convention, "selective", prefetch, in_flight, accumulated)
    assert peak >= model_states(config.params, stage, ranks, convention).total_bytes and type(peak) is int
    assert peak <= gpt2_peak_bytes(config, stage, ranks, 1, 8, convention, "none", prefetch + 1, in_flight + 1, True)


def test_recomputation_has_one_layer_at_a_time():
    config = CONFIGS["gpt2"]
    none, selective, full = (gpt2_peak_bytes(config, 0, 1, 8, 1024, recompute=how)
                             for how in ("none", "selective", "full"))
    layers = [layer_activation_bytes(8, 1024, 768, 12, recompute=how) for how in ("none", "selective", "full")]
    assert none - selective == 12 * (layers[0] - layers[1]) and selective - full == 12 * (layers[1] - layers[2])
    # Where nothing else is held, the moment with one layer made again is the peak, not the loss.
    assert states_peak((0, 0), [8, 8], 0, 1, convention=Convention("none", 0, 0, 0), activations=1, recomputed=9) == 11


# --- a rank's share ---

@settings(deadline=None)
@given(st.integers(0, 10**6), ranks_)
def test_a_share_is_one_formula_everywhere(numel, ranks):
    layout = Layout.build({"row": (numel,)}, ranks)
    assert layout.padded == padded_elements(numel, ranks) and layout.slice(0).stop == shard_elements(numel, ranks)
    assert numel <= layout.padded < numel + ranks
    if numel:
        assert model_states(numel, 3, ranks, Convention("elements", 1, 0, 0)).total_bytes == layout.slice(0).stop


# --- bad input ---

@pytest.mark.parametrize("call, words", [
    (lambda: model_states(0, 3, 8), "params must be a positive whole number, not 0"),
    (lambda: model_states(-7, 3, 8), "not -7"),
    (lambda: model_states(7.5, 3, 8), "not 7.5"),
    (lambda: model_states(float("nan"), 3, 8), "not nan"),
    (lambda: model_states("7", 3, 8), "not '7'"),
    (lambda: model_states(7, 4, 8), "stage must be 0, 1, 2 or 3, not 4"),
    (lambda: model_states(7, 3, 0), "ranks must be a positive whole number, not 0"),
    (lambda: largest_params(7, 3, 0), "ranks must be"),
    (lambda: fewest_ranks(7, 5, 100), "stage must be"),
    (lambda: sent_elements(7, 3, 2, accumulation=0), "accumulation must be"),
    (lambda: sent_elements(7, 3, 0, shard=4), "ranks must be"),
    (lambda: passes(3, scheme="mics"), "no scheme 'mics': there are zero, keep and deepspeed"),
    (lambda: bus_factor("gossip", 2), "no bus factor of 'gossip'"),
    (lambda: layer_activation_bytes(1, 1, 1, 1, recompute="some"), "none, selective or full, not 'some'"),
])
def test_bad_input(call, words):
    with pytest.raises(BadInput, match=words):
        call()


def test_whole_floats_are_fine():
    assert model_states(7e9, 3, 8) == model_states(7 * 10**9, 3, 8)


def test_formulas_do_not_import_torch():
    code = """
import importlib, pkgutil, sys
import zerocourse.formulas, zerocourse.commands.memory.memory_command
for file in pkgutil.iter_modules(zerocourse.formulas.__path__):
    importlib.import_module(f"zerocourse.formulas.{file.name}")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
