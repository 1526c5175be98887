"""Triton kernels equal their plain twins and torch's fused ones, and move the bytes that the formulas say.

Most of it runs in Triton's interpreter, in ranks that have TRITON_INTERPRET=1 from their start: it cannot be switched
on in a process that has imported triton, and it must not be on for the other tests. Compiled kernels: `test_gpu.py`.
"""

import copy
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from zerocourse.errors import BadInput
from zerocourse.launch.ranks import Ranks

pytest.importorskip("triton", reason="kernels need triton (Linux; the `triton` extra)")

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


@pytest.fixture(scope="module")
def interpreter():
    """`interpreter(fn, ...)`: fn's value, from a process in which kernels are interpreted."""
    with Ranks(1, env={"TRITON_INTERPRET": "1"}, timeout=100, quiet=True) as ranks:
        yield lambda fn, *args: ranks.run(fn, *args)[0]


def close(ours, theirs, ulps=8):
    """Equal up to a few units in the last place of numbers about as large as the parameters."""
    eps = torch.finfo(theirs.dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=ulps * eps, atol=ulps * eps / 4)


# -- AdamW ------------------------------------------------------------------------------------------------------------

def train(optimizer, params, steps=4, seed=0):
    """Steps with random gradients; some parameters have none at first, so that step counts differ."""
    source = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for index, param in enumerate(params):
            gradient = torch.randn(param.shape, generator=source).to(param.dtype)
            if getattr(optimizer, "defaults", {}).get("fused"):  # torch's reads memory as it lies, whatever the strides
                gradient = torch.empty_like(param).copy_(gradient)
            param.grad = None if index == 1 and step < 2 else gradient
        optimizer.step()


def make_params():
    source = torch.Generator().manual_seed(1)
    shapes = [(7, 13), (70_001,), (3, 5, 2), (), (64,)]
    params = [torch.randn(shape, generator=source) for shape in shapes]
    params.append(torch.randn(4, 3, 5, 5, generator=source).to(memory_format=torch.channels_last))
    return [torch.nn.Parameter(param) for param in params]


def against_torch():
    from zerocourse.kernels.adamw import FusedAdamW

    ours, theirs = make_params(), make_params()

    def groups(params):
        return [{"params": params[:3], "weight_decay": 0.0}, {"params": params[3:], "lr": 3e-3}]

    optimizer = FusedAdamW(groups(ours), **SETTINGS)
    reference = torch.optim.AdamW(groups(theirs), fused=True, **SETTINGS)
    train(optimizer, ours)
    train(reference, theirs)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine.data, other.data)
        assert optimizer.state[mine].keys() == reference.state[other].keys()
        for name, value in reference.state[other].items():
            close(optimizer.state[mine][name], value.to(optimizer.state[mine][name].device))
    return [int(optimizer.state[param]["step"]) for param in ours]


def test_adamw_equals_torchs_fused_one(interpreter):
    assert interpreter(against_torch) == [4, 2, 4, 4, 4, 4]


def test_a_late_parameter_changes_no_other():
    """Each parameter's averages are corrected for its own steps, also where the last one has its first gradient late."""
    from zerocourse.kernels.adamw import FusedAdamW, adamw

    ours, theirs = ([torch.nn.Parameter(torch.ones(3)) for _ in range(2)] for _ in range(2))
    for params, optimizer in ((ours, FusedAdamW(ours, **SETTINGS, update=adamw)), (theirs, torch.optim.AdamW(theirs, **SETTINGS))):
        draw = torch.Generator().manual_seed(0)
        for step in range(30):
            params[0].grad, params[1].grad = torch.randn(3, generator=draw), torch.ones(3) if step > 19 else None
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        close(mine.data, other.data)


def against_twin():
    from zerocourse.kernels.adamw import FusedAdamW, adamw

    results = []
    for update in ({}, {"update": adamw}):
        params = make_params()
        train(FusedAdamW(params, **SETTINGS, **update), params)
        results.append(params)
    for mine, other in zip(*results, strict=True):
        close(mine.data, other.data)


def test_adamw_equals_its_plain_twin(interpreter):
    interpreter(against_twin)


def in_bf16():
    from zerocourse.kernels.adamw import FusedAdamW

    exact, gradient = torch.randn(5000).bfloat16().float(), torch.randn(5000).bfloat16()
    half, full = torch.nn.Parameter(exact.bfloat16()), torch.nn.Parameter(exact.clone())
    half.grad, full.grad = gradient, gradient.float()
    optimizer, reference = FusedAdamW([half], **SETTINGS), torch.optim.AdamW([full], **SETTINGS)
    optimizer.step()
    reference.step()
    close(optimizer.state[half]["exp_avg_sq"], reference.state[full]["exp_avg_sq"])  # fp32, from the same gradient
    off = (half.detach().float() - full.detach()).abs()
    assert (off <= full.detach().abs() * 2**-7 + 1e-6).all(), off.max()  # one unit: the interpreter truncates
    again = FusedAdamW([half], **SETTINGS)
    again.load_state_dict(optimizer.state_dict())
    assert again.state[half]["exp_avg"].dtype is torch.float32
    assert torch.equal(again.state[half]["exp_avg"], optimizer.state[half]["exp_avg"])
    assert again.state[half]["exp_avg"].data_ptr() != optimizer.state[half]["exp_avg"].data_ptr()


def test_adamw_in_bf16_keeps_fp32_means_also_through_a_state_dict(interpreter):
    interpreter(in_bf16)


def neighbours():
    from zerocourse.kernels.adamw import FusedAdamW
    from zerocourse.kernels.adamw_kernel import fused_adamw

    sizes = []

    def counted(p, *rest):
        sizes.append(p.numel())
        fused_adamw(p, *rest)

    row, gradients = torch.randn(1000), torch.randn(1000)
    cuts = [0, 10, 300, 400, 1000]
    params = [torch.nn.Parameter(row[start:stop]) for start, stop in pairwise(cuts)]
    alone = [torch.nn.Parameter(param.detach().clone()) for param in params]
    optimizer, reference = FusedAdamW(params, update=counted, **SETTINGS), torch.optim.AdamW(alone, **SETTINGS)
    for without in (None, None, 2):  # at last one has no gradient, and splits the row
        optimizer.load_state_dict(optimizer.state_dict())  # neighbours stay neighbours
        for index, (start, stop) in enumerate(pairwise(cuts)):
            params[index].grad = None if index == without else gradients[start:stop]
            alone[index].grad = None if index == without else gradients[start:stop].clone()
        optimizer.step()
        reference.step()
    close(row, torch.cat([param.data for param in alone]))
    return sizes


def test_neighbours_on_a_flat_shard_take_one_kernel(interpreter):
    assert interpreter(neighbours) == [1000, 1000, 300, 600]


def continues_from_torch():
    from zerocourse.kernels.adamw import FusedAdamW

    ours, theirs = make_params(), make_params()
    reference = torch.optim.AdamW(theirs, **SETTINGS)
    train(reference, theirs)
    optimizer = FusedAdamW(ours, **SETTINGS)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    for mine, other in zip(ours, theirs, strict=True):
        mine.data.copy_(other.data)
    train(optimizer, ours, seed=5)
    train(reference, theirs, seed=5)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine.data, other.data)


def test_adamw_continues_from_torchs_state_dict(interpreter):
    interpreter(continues_from_torch)


def refusals():
    from zerocourse.kernels.adamw import FusedAdamW

    gaps = torch.nn.Parameter(torch.zeros(8)[::2])
    gaps.grad = torch.zeros(4)
    with pytest.raises(BadInput, match="gaps or overlaps"):
        FusedAdamW([gaps]).step()
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(BadInput, match="sparse=False"):
        FusedAdamW(table.parameters()).step()
    assert FusedAdamW([torch.nn.Parameter(torch.zeros(1))]).step(lambda: 7) == 7  # a closure, and no gradient


def test_adamw_refuses_what_it_cannot_walk_through(interpreter):
    interpreter(refusals)


def sharded_losses(fused):
    import zerocourse
    from zerocourse.models.gpt2 import build_model

    torch.manual_seed(0)
    model = build_model("gpt2-tiny", n_layer=2, n_embd=32)
    if fused:
        from zerocourse.kernels.adamw import FusedAdamW
        optimizer = FusedAdamW(model.parameters(), **SETTINGS)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **SETTINGS)
    model, optimizer = zerocourse.shard(model, optimizer, stage=3)
    torch.manual_seed(torch.distributed.get_rank())
    losses = []
    for _ in range(3):
        tokens = torch.randint(256, (1, 16))
        optimizer.zero_grad()
        loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_adamw_trains_under_stage_3():
    with Ranks(2, env={"TRITON_INTERPRET": "1"}, timeout=100, quiet=True) as ranks:
        ours, theirs = ranks.run(sharded_losses, True), ranks.run(sharded_losses, False)
    torch.testing.assert_close(torch.tensor([*ours]), torch.tensor([*theirs]), rtol=1e-5, atol=0)


# -- LayerNorm --------------------------------------------------------------------------------------------------------

def layer_norm_case(shape, dtype=torch.float32, slices=slice(None)):
    """Ours, and torch's from the same numbers in fp32: results and the three gradients."""
    from zerocourse.kernels.layernorm import layer_norm

    torch.manual_seed(2)
    C = shape[-1]
    x = (3 * torch.randn(shape) + 5).to(dtype)[slices].requires_grad_()
    weight, bias = (torch.randn(C).to(dtype).requires_grad_() for _ in range(2))
    dy = torch.randn(x.shape).to(dtype)
    results = []
    exact = [tensor.detach().float().requires_grad_() for tensor in (x, weight, bias, dy)]
    for inputs, function in (((x, weight, bias, dy), layer_norm), (exact, exact_layer_norm)):
        y = function(*inputs[:3], 1e-3)
        results.append((y, *torch.autograd.grad(y, inputs[:3], inputs[3])))
    return results


def exact_layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_equal():
    for shape in ((300, 200), (1, 64), (2, 3, 65), (129, 3), (64,), (0, 8)):
        for ours, theirs in zip(*layer_norm_case(shape), strict=True):
            assert ours.shape == theirs.shape
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    every_other = layer_norm_case((40, 48), slices=(slice(None, None, 2), slice(None)))
    for ours, theirs in zip(*every_other, strict=True):  # not contiguous
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for ours, exact in zip(*layer_norm_case((70, 96), torch.bfloat16), strict=True):
        assert ours.dtype is torch.bfloat16
        torch.testing.assert_close(ours.float(), exact, rtol=2**-7, atol=1e-4)  # one unit: the interpreter truncates


def test_layer_norm_equals_torchs_forward_and_backward(interpreter):
    interpreter(layer_norm_equal)


def layer_norm_twin_and_module():
    from zerocourse.kernels.layernorm import FusedLayerNorm, layer_norm, plain_layer_norm

    module, x = FusedLayerNorm(24), torch.randn(5, 24)
    torch.testing.assert_close(module(x), plain_layer_norm(x, module.weight, module.bias), rtol=1e-5, atol=1e-6)
    with pytest.raises(BadInput, match=r"shape \(24,\), not \(23,\)"):
        layer_norm(x, torch.ones(23), torch.ones(24))
    with pytest.raises(BadInput, match="16385 columns"):
        layer_norm(torch.zeros(1, 16385), torch.ones(16385), torch.ones(16385))


def test_layer_norm_equals_its_plain_twin_and_names_what_is_wrong(interpreter):
    interpreter(layer_norm_twin_and_module)


# -- RMSNorm: the same kernels ------------------------------------------------------------------------------------------

def rms_norm_equal():
    from zerocourse.kernels.layernorm import FusedRMSNorm, plain_rms_norm, rms_norm

    for shape in ((300, 200), (1, 64), (2, 3, 65), (64,), (0, 8)):
        draw = torch.Generator().manual_seed(2)
        x, dy = (torch.randn(shape, generator=draw) for _ in range(2))
        x, weight = (3 * x + 5).requires_grad_(), torch.randn(shape[-1], generator=draw).requires_grad_()
        y, exact = rms_norm(x, weight, 1e-3), F.rms_norm(x, shape[-1:], weight, 1e-3)
        torch.testing.assert_close(y, exact, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(torch.autograd.grad(y, (x, weight), dy), torch.autograd.grad(exact, (x, weight), dy), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)
    module, x = FusedRMSNorm(24), torch.randn(5, 24)
    torch.testing.assert_close(module(x), torch.nn.RMSNorm(24)(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rms_norm(x, module.weight), plain_rms_norm(x, module.weight), rtol=1e-5, atol=1e-6)
    half = torch.randn(70, 96).bfloat16()
    assert rms_norm(half, torch.ones(96)).dtype is torch.bfloat16
    with pytest.raises(BadInput, match=r"rms_norm of \(5, 24\) needs a weight of shape \(24,\), not \(23,\)"):
        rms_norm(x, torch.ones(23))


def test_rms_norm_equals_torchs_forward_and_backward(interpreter):
    interpreter(rms_norm_equal)


# -- bytes ------------------------------------------------------------------------------------------------------------

def bytes_of_adamw():
    from zerocourse.kernels import adamw, adamw_kernel, traffic

    def state(n, dtype):
        return *torch.ones(2, n, dtype=dtype), *torch.zeros(2, n), 1, *SETTINGS.values()

    n = 70_001
    for dtype in (torch.float32, torch.bfloat16):
        arguments = state(n, dtype)
        counted = traffic.of_triton(lambda arguments=arguments: adamw_kernel.fused_adamw(*arguments))
        assert counted == traffic.adamw_bytes(n, dtype.itemsize)
    arguments = state(n, torch.float32)
    plain = traffic.of_torch(lambda: adamw.adamw(*arguments))
    return counted.total / n, traffic.adamw_bytes(n).total / n, plain.total / n


def test_fused_adamw_moves_28_bytes_an_element_and_the_plain_one_80(interpreter):
    assert interpreter(bytes_of_adamw) == (22, 28, 80)


def bytes_of_layer_norm():
    from zerocourse.kernels import layernorm, traffic

    R, C = 320, 256
    x, weight, bias, dy = torch.randn(R, C, requires_grad=True), torch.ones(C), torch.zeros(C), torch.randn(R, C)
    weight.requires_grad_(), bias.requires_grad_()
    trips = []
    for function, count in ((layernorm.layer_norm, traffic.of_triton), (layernorm.plain_layer_norm, traffic.of_torch)):
        forward = count(lambda function=function: function(x, weight, bias))
        y = function(x, weight, bias)
        backward = count(lambda y=y: torch.autograd.grad(y, (x, weight, bias), dy))
        trips += [forward.total / x.nbytes, backward.total / x.nbytes]
    formula = [traffic.total / x.nbytes for traffic in traffic.layer_norm_bytes(R, C)]
    return trips, formula


def bytes_of_rms_norm():
    from zerocourse.kernels import layernorm, traffic

    x, weight, dy = torch.randn(320, 256, requires_grad=True), torch.ones(256, requires_grad=True), torch.randn(320, 256)
    forward = traffic.of_triton(lambda: layernorm.rms_norm(x, weight))
    y = layernorm.rms_norm(x, weight)
    backward = traffic.of_triton(lambda: torch.autograd.grad(y, (x, weight), dy))
    return [each.total / x.nbytes for each in (forward, backward)]


def test_fused_rms_norm_visits_memory_as_often_and_reads_no_bias(interpreter):
    forward, backward = interpreter(bytes_of_rms_norm)
    assert forward == pytest.approx(2, rel=0.02) and backward == pytest.approx(3, rel=0.02)


def test_fused_layer_norm_visits_memory_twice_and_thrice(interpreter):
    (forward, backward, plain_forward, plain_backward), formula = interpreter(bytes_of_layer_norm)
    assert formula == [2, 3]
    assert forward == pytest.approx(2, rel=0.03) and backward == pytest.approx(3, rel=0.03)  # the weights are the rest
    assert plain_forward == pytest.approx(12, rel=0.03) and plain_backward > 20


def bytes_of_other_accesses(n):
    """A histogram by atomics, with some elements masked out; a swap of one number; a copy by descriptors."""
    import triton
    import triton.language as tl

    from zerocourse.kernels import traffic

    @triton.jit
    def add_up(values, total, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(total + at % 8, tl.load(values + at, at < n, 0.0), at < n)

    @triton.jit
    def swap(flag):
        tl.atomic_cas(flag, 0, 1)

    @triton.jit
    def copy(source, into, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        block = [ROWS, COLUMNS]
        read = tl.make_tensor_descriptor(source, [rows, COLUMNS], [COLUMNS, 1], block)
        write = tl.make_tensor_descriptor(into, [rows, COLUMNS], [COLUMNS, 1], block)
        write.store([tl.program_id(0) * ROWS, 0], read.load([tl.program_id(0) * ROWS, 0]))

    values, total = torch.ones(n), torch.zeros(8)
    atomics = traffic.of_triton(lambda: add_up[(triton.cdiv(n, 64),)](values, total, n, BLOCK=64))
    assert total.sum() == n
    flag = torch.zeros(1, dtype=torch.int32)
    swaps = traffic.of_triton(lambda: swap[(1,)](flag))
    assert flag.item() == 1
    source, into = torch.randn(10, 16), torch.zeros(10, 16)
    copies = traffic.of_triton(lambda: copy[(3,)](source, into, 10, ROWS=4, COLUMNS=16))
    assert torch.equal(source, into)
    return [(each.read, each.written) for each in (atomics, swaps, copies)]


def test_atomics_and_descriptors_of_tensors_are_counted(interpreter):
    """An atomic addition reads and writes what it adds to; of a descriptor's last block only rows count that are there."""
    n = 1000
    assert interpreter(bytes_of_other_accesses, n) == [(8 * n, 4 * n), (4, 4), (640, 640)]


# -- where a kernel runs ----------------------------------------------------------------------------------------------

def without_interpreter():
    from zerocourse.kernels.adamw import FusedAdamW
    from zerocourse.kernels.traffic import of_triton

    param = torch.nn.Parameter(torch.zeros(3))
    param.grad = torch.zeros(3)
    with pytest.raises(BadInput, match="TRITON_INTERPRET=1"):
        FusedAdamW([param]).step()
    with pytest.raises(BadInput, match="TRITON_INTERPRET=1"):
        of_triton(lambda: None)


def test_the_interpreter_is_never_the_default(pool):
    pool(1).run(without_interpreter)


def test_without_triton_the_plain_step_works_and_the_kernels_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("backend", "adamw", "adamw_kernel"):
        monkeypatch.delitem(sys.modules, f"zerocourse.kernels.{name}", raising=False)
    from zerocourse.kernels.adamw import FusedAdamW, adamw

    mine, torchs = (torch.nn.Parameter(torch.arange(4.0)) for _ in range(2))
    for param, optimizer in ((mine, FusedAdamW([mine], update=adamw)), (torchs, torch.optim.AdamW([torchs]))):
        param.grad = torch.ones(4)
        optimizer.step()
    close(mine, torchs)
    with pytest.raises(BadInput, match="triton, which is not installed"):
        FusedAdamW([mine])


def test_bandwidth_is_refused_where_it_cannot_be_measured(interpreter):
    def refuse():
        from zerocourse.kernels.bandwidth import measure_bandwidth
        with pytest.raises(BadInput, match="needs a GPU"):
            measure_bandwidth()

    interpreter(refuse)


# -- what only a GPU does, without one -------------------------------------------------------------------------------

class Elsewhere(torch.Tensor):
    """As if it were on the second GPU."""

    is_cuda = property(lambda self: True)
    device = property(lambda self: torch.device("cuda", 1))


def on_which_device() -> list[str]:
    """What a launch of each kind makes current, in order, for arguments on another device than the current one."""
    from zerocourse.kernels import adamw_kernel, backend, layernorm

    found = []

    @contextmanager
    def noted(device):
        found.append(str(device))
        yield
        found.append("back")

    kernel = {(1,): lambda *args, **kwargs: found.append("launch")}
    x = torch.zeros(4).as_subclass(Elsewhere)
    with mock.patch.object(torch.cuda, "device", noted):
        with backend.on_device_of(torch.zeros(1)):
            assert not found  # nothing is to be selected on a CPU
        for run in (backend.launcher(kernel, adamw_kernel.CONFIG),
                    backend.autotuned(kernel, layernorm.CONFIGS, ["C"], layernorm.prune)):
            run(lambda settings: (1,), x)
    return found


def test_a_kernel_runs_on_the_device_of_its_arguments(interpreter):
    assert interpreter(on_which_device) == ["cuda:1", "launch", "back"] * 2


def no_bf16_below_8() -> list[str]:
    from zerocourse.kernels import backend

    said = []
    with mock.patch.object(backend, "INTERPRETED", False), mock.patch.object(torch.cuda, "get_device_name", lambda where: "Tesla T4"):
        for capability, dtypes in product(((7, 5), (8, 0)), ((torch.float16, torch.float32), (torch.float32, torch.bfloat16))):
            with mock.patch.object(torch.cuda, "get_device_capability", lambda where, capability=capability: capability):
                try:
                    backend.check_device(*(SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype) for dtype in dtypes))
                    said.append("")
                except BadInput as error:
                    said.append(str(error))
    return said


def test_bf16_is_refused_in_a_sentence_where_a_gpu_has_none(interpreter):
    said = interpreter(no_bf16_below_8)
    assert [bool(each) for each in said] == [False, True, False, False]
    assert "bf16 on Tesla T4" in said[1] and "7.5, below 8.0: train in fp16 or fp32" in said[1]


def configs_by_columns() -> list[list[tuple[int, int]]]:
    from zerocourse.kernels.backend import triton
    from zerocourse.kernels.layernorm import fits, worth_trying

    configs = [triton.Config({"BLOCK_R": rows}, num_warps=warps) for rows, warps in ((1, 1), (1, 4), (1, 8), (2, 4), (4, 4), (8, 8))]
    assert not any(fits(rows, 8, 2**k) for rows in range(2, 65) for k in range(15) if rows * 2**k > 24576)
    return [[(config.kwargs["BLOCK_R"], config.num_warps) for config in worth_trying(configs, columns)]
            for columns in (128, 2048, 8192, 16384)]


def test_layer_norm_tries_no_config_that_does_not_fit_into_registers(interpreter):
    small, middle, wide, widest = interpreter(configs_by_columns)
    assert len(small) == 6 and middle == [(1, 4), (1, 8), (2, 4), (4, 4), (8, 8)] and wide == widest == [(1, 8)]


COMPILE = r"""
import json, os, re, subprocess, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from zerocourse.kernels import layernorm
from zerocourse.kernels.adamw_kernel import CONFIG, adamw_kernel

def spilled(kernel, dtypes, constants, capability, warps):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else dtypes.get(name, "fp32") for name in names}
    divisible = {(names.index(name),): [["tt.divisibility", 16]] for name, dtype in signature.items() if dtype[0] == "*" or name in "nC"}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, divisible)
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps}).asm["ptx"]
    ptxas = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "ptxas")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        gpu = re.search(r"\.target (sm_\w+)", ptx)[1]
        said = subprocess.run([ptxas, "-v", f"--gpu-name={gpu}", file.name, "-o", os.devnull], capture_output=True, text=True).stderr
    return int(re.search(r"(\d+) bytes spill stores", said)[1]), ptx.count("ld.global"), ptx.count("ld.global.v")

found = []
for capability in (75, 80, 90):
    for dtype in ("*fp32", "*fp16" if capability == 75 else "*bf16"):
        states = {"p_ptr": dtype, "g_ptr": dtype, "m_ptr": "*fp32", "v_ptr": "*fp32", "n": "i32"}
        found.append((capability, "adamw", dtype, *spilled(adamw_kernel, states, CONFIG.kwargs, capability, CONFIG.num_warps)))
    rows = {name: "*fp32" for name in ("mean_ptr", "rstd_ptr", "dweights_ptr", "dbiases_ptr")} | {"R": "i32", "C": "i32"}
    rows |= {name: "*fp16" for name in ("x_ptr", "weight_ptr", "bias_ptr", "y_ptr", "dy_ptr", "dx_ptr")}
    for kernel in (layernorm.forward_kernel, layernorm.backward_kernel):
        config = layernorm.worth_trying(layernorm.CONFIGS, 2048)[-1]  # most rows
        constants = {"BLOCK_C": 2048, **config.kwargs}
        found.append((capability, "layer norm", "*fp16", *spilled(kernel, rows, constants, capability, config.num_warps)))
print(json.dumps(found))
"""


def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    """For a T4, an A100 and an H100, without a spilled register, and AdamW reads nothing but vectors where shards are aligned."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("TRITON_INTERPRET", None)
    result = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment, timeout=100)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert len(found) == 12
    for capability, kernel, dtype, spills, reads, vectors in found:
        assert not spills, f"{kernel} of {dtype} spills {spills} bytes for sm_{capability}"
        assert kernel != "adamw" or reads == vectors, f"{kernel} of {dtype} has {reads - vectors} scalar reads for sm_{capability}"
