"""Parameters that are read or written outside of a forward: the values are whole and count, or a sentence refuses it.

At stage 3 nothing whole is there between steps. Who reads must not get NaN in silence, and who writes must not write
into nothing. `zerocourse.gathered` is what the sentences send people to.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from attempts import A_PARAMETER, by_stage, is_state, pieces_of, prepared, state_of, unsharded
from torch import nn
from worlds import Stack, rows, squares

import zerocourse
from zerocourse import Ranks, shard
from zerocourse.errors import BadInput
from zerocourse.measure.ledger import Ledger
from zerocourse.memory.storage import FreeableStorage

# -- writing and reading ---------------------------------------------------------------------

WRITES = {
    "data": lambda param: param.data.clamp_(-0.01, 0.01),
    "no_grad": lambda param: param.clamp_(-0.01, 0.01),
    "detach": lambda param: param.detach().clamp_(-0.01, 0.01),
    "copy_": lambda param: param.copy_(param.clamp(-0.01, 0.01)),
}


def clamped(comm, stage, way: str, param_dtype) -> float:
    """The largest weight after a clamp, as for the critic of a Wasserstein GAN, and a step without gradients."""
    model, optimizer = prepared(comm, stage, param_dtype=param_dtype)
    model(rows(0, 0, 0).to(param_dtype)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for param in model.parameters():
            WRITES[way](param)
    optimizer.step()
    return max(tensor.abs().max().item() for tensor in state_of(model).values())


@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("param_dtype", (torch.float32, torch.bfloat16))
def test_weights_clamped_between_steps(pool, way, param_dtype):
    """At stage 3 there is nothing to write to outside of a forward. Below, the write counts, for master weights too."""
    def check(rank: int, largest: float) -> None:
        assert largest <= 1 / 64, f"rank {rank}: the largest weight is {largest} after a clamp to 0.01"

    by_stage(pool, clamped, check, rf"({A_PARAMETER}).*gathered|gathered.*({A_PARAMETER})", args=(way, param_dtype))


def averaged(comm, stage) -> dict:
    """An exponential moving average over model.parameters()."""
    model, optimizer = prepared(comm, stage)
    average = [torch.zeros_like(param, requires_grad=False) for param in model.parameters()]
    for step in range(2):
        squares(model, step, 0, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, param in zip(average, model.parameters(), strict=True):
                mean.lerp_(param.detach(), 0.1)
    return {name: mean.detach() for (name, _), mean in zip(model.named_parameters(), average, strict=True)}


def test_a_moving_average(pool):
    by_stage(pool, averaged, unsharded(averaged), "gathered|state_dict")


def reads(comm, stage, read: Callable) -> dict:
    model, _ = prepared(comm, stage)
    return {"read": torch.as_tensor(read(model)).detach().clone()}


READS = {
    "sum": lambda model: model.first.weight.sum(),
    "norm": lambda model: model.blocks[1].up.weight.norm(),
    "item": lambda model: model.last.bias[0].item(),
    "vector": lambda model: nn.utils.parameters_to_vector(model.parameters()),
}


@pytest.mark.parametrize("way", READS)
def test_a_weight_read_outside_of_a_forward(pool, way):
    by_stage(pool, reads, unsharded(reads, READS[way]), "gathered|state_dict", args=(READS[way],))


def submodules_state(comm, stage, of: str) -> dict:
    model, _ = prepared(comm, stage)
    return {name: tensor.clone() for name, tensor in model.get_submodule(of).state_dict().items()}


def loads_submodule(comm, stage, of: str) -> dict:
    """The state after ones were loaded into a part of the model, and a step without gradients."""
    model, optimizer = prepared(comm, stage)
    whole = Stack().get_submodule(of).state_dict()
    model.get_submodule(of).load_state_dict({name: torch.ones(tensor.shape) for name, tensor in whole.items()})
    optimizer.step()
    return state_of(model)


SUBMODULES = ("first", "blocks", "blocks.1", "blocks.1.up")  # of the root, of several units, a unit, a part of one


@pytest.mark.parametrize("of", SUBMODULES)
def test_a_submodules_state(pool, of):
    by_stage(pool, submodules_state, unsharded(submodules_state, of), args=(of,), stages=(0, 1, 2))
    by_stage(pool, submodules_state, None, r"zerocourse\.state_dict", args=(of,), stages=(3,))


@pytest.mark.parametrize("of", SUBMODULES)
def test_loading_a_submodules_state(pool, of):
    refusal = r"zerocourse\.load_state_dict"
    by_stage(pool, loads_submodule, unsharded(loads_submodule, of), refusal, args=(of,), stages=(0, 1, 2))
    by_stage(pool, loads_submodule, None, refusal, args=(of,), stages=(3,))


def freed_and_written() -> list:
    """What is read from freed memory, after somebody wrote into other freed memory: is it all NaN?"""
    model, _ = shard(Stack(), stage=3)
    kept = []
    handles = [module.register_forward_hook(lambda module, *_: kept.append(module.weight.detach()))
               for module in model.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        squares(model, 0, 0, 0)
    for handle in handles:
        handle.remove()
    found = []
    for index, written in enumerate(kept):
        with suppress(RuntimeError, BadInput):  # it may be refused
            written.fill_(1.0)
        found += [bool(other.isnan().all()) for other in kept[index + 1 :]]  # into these nobody has written
    return found


def test_the_pages_of_nan_do_not_keep_what_was_freed():
    storage = FreeableStorage(torch.zeros(1000))
    storage.free()
    assert not storage.held and (not storage.readable or not storage._nan._pages.nbytes())


@pytest.mark.skipif(not FreeableStorage(torch.zeros(4)).readable,
                    reason="before torch 2.11, and outside Linux, to read a view of freed memory ends the process")
def test_freed_memory_reads_as_nan_also_after_a_write_to_other_freed_memory():
    with Ranks(2, timeout=30, quiet=True) as ranks:  # of its own: what is written there may stay
        for found in ranks.run(freed_and_written):
            assert all(found) and len(found) == 28, f"{found.count(False)} of {len(found)} reads were not NaN"


def test_what_was_written_into_freed_memory_is_nan_again_when_it_is_freed_again():
    tensor = torch.zeros(5000)
    storage = FreeableStorage(tensor)
    if not storage.readable:
        pytest.skip("freed memory cannot be read on this system")
    storage.free()
    tensor.fill_(1.0)  # nobody keeps that
    storage.allocate()
    storage.free()
    assert tensor.isnan().all()
    storage.allocate()


# -- functional calls -----------------------------------------------------------------------------------------------

def called_with(model) -> torch.Tensor:
    return torch.func.functional_call(model, dict(model.named_parameters()), (rows(0, 0, 0),))


def called_with_others(model) -> torch.Tensor:
    """With values that are whole, as a meta-learner has them."""
    whole = {name: 2 * tensor for name, tensor in Stack().state_dict().items()}
    return torch.func.functional_call(model, whole, (rows(0, 0, 0),))


def per_sample(model) -> torch.Tensor:
    return torch.vmap(model)(rows(0, 0, 0))


def functional_gradient(model) -> torch.Tensor:
    def loss(params):
        return torch.func.functional_call(model, params, (rows(0, 0, 0),)).square().mean()

    gradients = torch.func.grad(loss)({name: param.detach() for name, param in model.named_parameters()})
    return torch.cat([gradient.reshape(-1) for gradient in gradients.values()])


@pytest.mark.parametrize("read", (called_with, called_with_others, per_sample, functional_gradient))
def test_functional_transforms(pool, read):
    by_stage(pool, reads, unsharded(reads, read), r"vmap|functional_call|torch\.func|gathered|state_dict", args=(read,))


# -- gathered --------------------------------------------------------------------------------------------------------

PARTS = {
    "unit": lambda model: [model.blocks[0]],
    "inside a unit": lambda model: [model.blocks[0].up],
    "parameter": lambda model: [model.blocks[0].up.weight, model.first.weight],
    "model": lambda model: [model],
}


def read_gathered(comm, stage, part: str) -> dict:
    """Whole values inside. At stage 3 the memory is free again afterwards, also after an exception inside."""
    model, _optimizer = shard(Stack(), stage=stage, comm=comm)
    for again in range(2):
        try:
            with zerocourse.gathered(*PARTS[part](model)):
                read = {"blocks.0.up.weight": model.blocks[0].up.weight.detach().clone()}
                if again:
                    raise ArithmeticError("blown")
        except ArithmeticError:
            pass
        assert stage < 3 or not any(flat.gathered for flat in model.zero.flats), "parameters stay gathered"
    return read


@pytest.mark.parametrize("part", PARTS)
def test_gathered_gives_whole_values(pool, part):
    oracle = {"blocks.0.up.weight": Stack().blocks[0].up.weight.detach()}
    by_stage(pool, read_gathered, is_state(oracle, None), args=(part,))


def consolidated_inside(comm, stage) -> dict:
    """The weight, read after the whole state was put together inside gathered()."""
    model, _ = shard(Stack(), stage=stage, comm=comm)
    with zerocourse.gathered(model.blocks[0]):
        zerocourse.state_dict(model)
        return {"blocks.0.up.weight": model.blocks[0].up.weight.detach().clone()}


def test_what_was_gathered_stays_so(pool):
    by_stage(pool, consolidated_inside, is_state({"blocks.0.up.weight": Stack().blocks[0].up.weight.detach()}, None))


def loaded(comm, stage) -> dict:
    """What the optimizer steps after a state was loaded that bf16 cannot hold."""
    model, optimizer = prepared(comm, stage, param_dtype=torch.bfloat16)
    zerocourse.load_state_dict(model, {name: torch.full_like(tensor, 1 / 3) for name, tensor in Stack().state_dict().items()})
    return {str(number): part.detach().clone() for number, part in enumerate(pieces_of(optimizer))}


def test_a_state_loaded_under_master_weights(pool):
    """All of its digits reach what the optimizer steps."""
    def thirds(rank: int, parts: dict) -> None:
        assert all(part.eq(1 / 3).all() for part in parts.values()), f"rank {rank} steps {parts}"

    by_stage(pool, loaded, thirds)


def write_gathered(comm, stage, part: str, write: bool, param_dtype) -> dict:
    """Each rank writes a number of its own; then a step without gradients."""
    model, optimizer = prepared(comm, stage, param_dtype=param_dtype)
    with zerocourse.gathered(*PARTS[part](model), write=write), torch.no_grad():
        model.blocks[0].up.weight.fill_(5.0 + comm.rank)
    optimizer.step()
    return state_of(model)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("param_dtype", (torch.float32, torch.bfloat16))
def test_writes_to_gathered_parameters(pool, part, param_dtype):
    """write=True: rank 0's values on all ranks, for the optimizer too. Without it a write is refused, with the name."""
    model = Stack()
    nn.init.constant_(model.blocks[0].up.weight, 5.0)
    oracle = {name: tensor.to(param_dtype) for name, tensor in model.state_dict().items()}
    by_stage(pool, write_gathered, is_state(oracle, None), args=(part, True, param_dtype))
    by_stage(pool, write_gathered, None, r"blocks\.0\.up\.weight.*write=True", args=(part, False, param_dtype))


def test_gathered_wants_a_part_of_a_sharded_model():
    with pytest.raises(BadInput, match="shard") as error, zerocourse.gathered(nn.Linear(2, 2)):
        pass
    assert "\n" not in str(error.value)


def test_what_hidden_parameters_show_is_no_parameter(monkeypatch):
    """On a GPU it keeps its memory, because nothing there reads as NaN: a number that no formula counts."""
    monkeypatch.setattr(FreeableStorage, "readable", False)
    torch.manual_seed(0)
    model, _ = shard(Stack(), stage=3)
    numbers = sum(flat.layout.padded for flat in model.zero.flats)
    with Ledger(model) as ledger:
        now = ledger.now()
    assert (now.parameters, now.scalars) == (4 * numbers, 4)
    assert model.zero.memory()["parameters_bytes"] == 4 * numbers
