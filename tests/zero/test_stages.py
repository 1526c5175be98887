"""Every stage equals the unsharded model, in every way to train that it offers."""

import gc
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import worlds
from worlds import STAGES, Case, check_bitwise, check_exact, check_near, check_whole, runs_of

from zerocourse import ZeroOptions
from zerocourse.formulas.peak import states_peak

WORLDS = (1, 2, 3, 4)
MAPS = ("flat", "round_robin", "contiguous", "greedy", worlds.by_name_length)


def compare(pool, cases: list[Case]) -> None:
    """With the unsharded model: bitwise (with clipping nearly: the stages add up a norm in another order), and with the
    whole batch."""
    for case, runs in runs_of(pool, cases):
        for rank, (run, oracle) in enumerate(zip(runs, worlds.exact(case), strict=True)):
            (check_near if case.clip else check_bitwise)(run, oracle, f"rank {rank} of {case}")
        check_whole(runs, case)


@pytest.mark.parametrize("world_size", WORLDS)
def test_equals_the_unsharded_model(pool, world_size):
    compare(pool, [Case(stage, world_size, optimizer=optimizer, accumulation=accumulation)
                   for stage in STAGES for optimizer in (worlds.adamw, worlds.sgd) for accumulation in (1, 4)])


@pytest.mark.parametrize("world_size", WORLDS)
def test_with_clipping(pool, world_size):
    """At 0.1 every step is clipped."""
    cases = [Case(stage, world_size, optimizer=worlds.sgd, clip=0.1, accumulation=accumulation, rank_map=rank_map)
             for stage in STAGES for accumulation, rank_map in ((1, None), (2, "greedy"))]
    compare(pool, cases)
    assert min(worlds.whole(cases[0]).norms) > 0.1


@pytest.mark.parametrize("world_size", (2, 3, 4))
def test_under_every_rank_map(pool, world_size):
    compare(pool, [Case(stage, world_size, rank_map=rank_map, accumulation=1 + index % 2,
                        optimizer=(worlds.adamw, worlds.sgd)[(stage + index) % 2])
                   for stage in STAGES for index, rank_map in enumerate(MAPS)])


@pytest.mark.parametrize("world_size", (2, 3))
def test_with_small_buckets(pool, world_size):
    """300 elements hold a few tensors or a part of a block; 1 element makes every tensor a bucket of its own."""
    compare(pool, [Case(stage, world_size, bucket_size=size, rank_map=rank_map, accumulation=accumulation)
                   for stage in STAGES for size, rank_map, accumulation in ((300, None, 2), (1, "greedy", 1))])


@pytest.mark.parametrize("world_size", (1, 2, 3))
def test_through_the_engine(pool, world_size):
    """The engine measures the norm at each step and clips at 1.0 unless told otherwise, which changes no gradient here."""
    compare(pool, [Case(stage, world_size, engine=True, accumulation=accumulation, optimizer=optimizer, clip=clip,
                        bucket_size=size)
                   for stage in STAGES for accumulation, optimizer, clip, size in
                   ((1, worlds.adamw, 0.0, None), (4, worlds.sgd, 0.0, 400), (2, worlds.sgd, 0.05, None))])


def test_with_other_options_of_shard(pool):
    """Units of any kind, no prefetch and much of it, one reduction at a time, parameters kept for the backward."""
    options = ({"units": [torch.nn.LayerNorm, "h.1"]}, {"units": []}, {"prefetch": 0}, {"prefetch": 9, "in_flight": 9},
               {"in_flight": 1, "reshard_after_forward": False})
    compare(pool, [Case(stage, 2, options=tuple(chosen.items()), accumulation=2, bucket_size=300)
                   for stage in STAGES for chosen in options])


def test_without_the_agreement(pool):
    """Where all ranks are alike, nothing needs to be agreed on: no message, the same numbers."""
    compare(pool, [Case(stage, 2, options=(("options", ZeroOptions(agreement=False)),)) for stage in STAGES])


# -- half precision --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("world_size", (2, 3, 4))
def test_in_bf16(pool, world_size):
    """Bitwise: gradients are bf16, their sum over ranks is fp32 and rounded once, and fp32 master weights are stepped."""
    check_exact(pool, [Case(stage, world_size, param_dtype=torch.bfloat16, accumulation=accumulation, steps=4)
                       for stage in STAGES for accumulation in (1, 3)])


def test_bf16_is_near_fp32_and_alike_in_all_stages(pool):
    cases = [Case(stage, 2, param_dtype=torch.bfloat16, steps=12) for stage in STAGES]
    oracle = worlds.exact(replace(cases[0], param_dtype=None))
    found = list(runs_of(pool, cases))
    for case, runs in found:
        for run, expected, first in zip(runs, oracle, found[0][1], strict=True):
            assert run.losses == pytest.approx(expected.losses, rel=0.01), case
            check_bitwise(run, first, case)


def masters() -> list:
    """By stage: dtypes of what is stepped and kept, how far fp32 weights went, and whether bf16 ones follow them."""
    found = []
    for stage in STAGES:
        case = Case(stage, optimizer=small_steps, param_dtype=torch.bfloat16, steps=5)
        model, optimizer = worlds.sharded(case)
        pieces = [piece for group in optimizer.param_groups for piece in group["params"]]
        before = [piece.detach().clone() for piece in pieces]
        worlds.train_plain(case, model, optimizer)
        kept = {value.dtype for state in optimizer.state.values() for value in state.values()}
        moved = max((piece - old).abs().max().item() for piece, old in zip(pieces, before, strict=True))
        follow = all(torch.equal(flat.shard[: flat.layout.real(model.zero.comm.rank)], flat.master[: flat.layout.real(
            model.zero.comm.rank)].bfloat16()) for flat in model.zero.flats)
        found.append(({piece.dtype for piece in pieces} | kept, moved, follow))
    return found


def small_steps(params):
    """1e-5 a step, where bf16 numbers near 1 are 2⁻⁸ apart."""
    return torch.optim.AdamW(params, lr=1e-5, weight_decay=0.0)


def test_master_weights_keep_what_bf16_forgets(pool):
    for found in pool(2).run(masters):
        for stage, (dtypes, moved, follow) in enumerate(found):
            assert dtypes == {torch.float32} and follow, f"stage {stage}: {dtypes}"
            assert 4e-5 < moved < 6e-5, f"stage {stage}: {moved}"


# -- bytes held ------------------------------------------------------------------------------------------------------

def states_held(cases: list[Case]) -> list[dict]:
    """Bytes of model states just before the second step and after it, and the sizes they should follow from."""
    all_found = []
    for case in cases:
        model, optimizer = worlds.sharded(case)
        rank, layouts = model.zero.comm.rank, [flat.layout for flat in model.zero.flats]
        for step in range(2):
            case.loss(model, step, 0, rank).backward()
            before = model.zero.memory(optimizer)
            optimizer.step()
            optimizer.zero_grad()
        all_found.append({"before": before, "after": model.zero.memory(optimizer),
                          "padded": [layout.padded for layout in layouts], "numel": [layout.numel for layout in layouts],
                          "own": [layout.bounds[rank + 1] - layout.bounds[rank] for layout in layouts],
                          "real": [layout.real(rank) for layout in layouts]})
    return all_found


def check_bytes(case: Case, by_rank: list[dict]) -> None:
    """16Ψ, 8Ψ + 8Ψ/N, 4Ψ + 12Ψ/N, 16Ψ/N in fp32; 2 + 2 + 12 bytes in bf16; padding is less than N elements a flat."""
    size, master = (4, 0) if case.param_dtype is None else (2, 4)
    params = sum(param.numel() for param in case.make().parameters())
    for rank, found in enumerate(by_rank):
        padded, own, real = (sum(found[kind]) for kind in ("padded", "own", "real"))
        assert sum(found["numel"]) == params
        if case.rank_map is None:
            assert all(pad - numel < case.world_size for pad, numel in zip(found["padded"], found["numel"], strict=True))
            assert found["own"] == [-(-numel // case.world_size) for numel in found["numel"]], f"{case}, rank {rank}"
        else:
            assert padded == params and own == real
        expected = {"parameters_bytes": size * (own if case.stage == 3 else padded),
                    "gradients_bytes": size * (own if case.stage > 1 else padded),
                    "optimizer_bytes": master * (own if case.stage else padded) + 8 * (real if case.stage else params)}
        expected["total_bytes"] = sum(expected.values())
        assert found["before"] == expected, f"{case}, rank {rank}"
        expected["total_bytes"] -= expected["gradients_bytes"]
        assert found["after"] == expected | {"gradients_bytes": 0}, f"{case}, rank {rank}"
    assert sum(sum(found["real"]) for found in by_rank) == params


@pytest.mark.parametrize("world_size", (2, 3, 4))
def test_bytes_held(pool, world_size):
    cases = [Case(stage, world_size, param_dtype=dtype, rank_map=rank_map)
             for stage in STAGES for dtype in (None, torch.bfloat16) for rank_map in (None, "greedy")]
    for case, by_rank in zip(cases, zip(*pool(world_size).run(states_held, cases), strict=True), strict=True):
        check_bytes(case, by_rank)


def counted_quickly(case: Case) -> list[tuple[int, int]]:
    """The meter's count, and the sum over the storages of `tensors()`: after a backward, as the optimizer steps, after it."""
    model, optimizer = worlds.sharded(case)
    found = []

    def look(*_):
        tensors = [tensor for kind, held in model.zero.tensors().items() if kind != "scalars" for tensor in held]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        found.append((model.zero.meter.held, sum(storages.values())))

    optimizer.register_step_pre_hook(look)
    for step in range(2):
        case.loss(model, step, 0, model.zero.comm.rank).backward()
        look()
        optimizer.step()
        look()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("dtype", (None, torch.bfloat16))
@pytest.mark.parametrize("stage", STAGES)
def test_bytes_held_are_those_of_the_tensors(pool, stage, dtype):
    for found in pool(2).run(counted_quickly, Case(stage, param_dtype=dtype)):
        assert [quick for quick, _ in found] == [exact for _, exact in found]


def storages() -> dict[int, int]:
    """Bytes by storage of every tensor that Python knows of."""
    tensors = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}


def nothing_else() -> list[tuple[int, int]]:
    """Bytes in the process after two steps, beyond those before the model was built, and what they should be."""
    found = []
    for stage in STAGES:
        gc.collect()
        before = storages()
        case = Case(stage, steps=2)
        model, optimizer = worlds.sharded(case)
        worlds.train_plain(case, model, optimizer)
        gc.collect()
        held = sum(nbytes for storage, nbytes in storages().items() if storage not in before)
        counters = 4 * len(optimizer.state)
        found.append((held, model.zero.memory(optimizer)["total_bytes"] + counters))
        del model, optimizer
    return found


def test_nothing_else_is_held(pool):
    for found in pool(2).run(nothing_else):
        assert [held for held, _ in found] == [expected for _, expected in found]


def deep():
    return worlds.gpt(n_layer=6)


def in_flight(case: Case) -> dict:
    """Gathered bytes over a step under stage 3: the most at any event, between forward and backward, after it."""
    model, optimizer = worlds.sharded(case)
    stage, seen = model.zero, []

    def gathered() -> int:
        seen.append(sum(flat.full.untyped_storage().nbytes() for flat in stage.flats))
        return seen[-1]

    found = {"at rest": gathered()}
    worlds.train_plain(replace(case, steps=1), model, optimizer)  # the order of units is recorded
    stage.recorder.alive = gathered
    loss = case.loss(model, 0, 0, 0)
    found["forward"], found["between"] = max(seen), gathered()
    seen.clear()
    loss.backward()
    return found | {"backward": max(seen), "after": gathered(),
                    "units": [4 * sum(flat.layout.padded for flat in unit.flats) for unit in stage.units]}


def check_in_flight(found: dict, prefetch: int, reshard_after_forward: bool) -> None:
    """The root and `prefetch + 1` units while the model computes; nothing at other times."""
    root, *blocks = found["units"]
    most = root + (min(prefetch + 1, len(blocks)) * max(blocks) if reshard_after_forward else sum(blocks))
    expected = {"forward": most, "between": 0 if reshard_after_forward else most, "backward": most, "at rest": 0, "after": 0}
    assert {key: found[key] for key in expected} == expected


def prefetching(prefetch: int, reshard_after_forward: bool) -> Case:
    return Case(make=deep, options=(("prefetch", prefetch), ("reshard_after_forward", reshard_after_forward)))


@pytest.mark.parametrize("prefetch, reshard_after_forward", ((0, True), (1, True), (2, True), (1, False)))
def test_units_in_flight(pool, prefetch, reshard_after_forward):
    for found in pool(2).run(in_flight, prefetching(prefetch, reshard_after_forward)):
        check_in_flight(found, prefetch, reshard_after_forward)


def gathers_of_a_backward(case: Case) -> tuple[dict, dict]:
    """The second all-gathers of the root and of the last block in a step whose order is known."""
    model, optimizer = worlds.sharded(case)
    worlds.train_plain(replace(case, steps=2), model, optimizer)
    events = [event for event in model.zero.recorder.of_step(1) if event["verb"] == "all_gather"]
    return tuple([event for event in events if event["unit"] == unit][1] for unit in ("root[0]", "h.5"))


def test_the_link_is_not_idle_while_a_backward_begins(pool):
    for root, last in pool(2).run(gathers_of_a_backward, prefetching(1, True)):
        assert last["start"] < root["end"], "the last block's gather began only after the wait for the root's"


def even():
    """Units of 1,884 and a root of 444 parameters: two and three ranks divide them."""
    return worlds.gpt(n_layer=6, n_embd=12, vocab_size=30)


def recorded_peak(case: Case) -> tuple[int, list[list[int]]]:
    """The most bytes of model states at any event of a step, and the padded sizes of the rows of root and units."""
    model, optimizer = worlds.sharded(case)
    worlds.train_plain(replace(case, steps=1), model, optimizer)
    stage = model.zero
    states = sum(value.nbytes for state in optimizer.state.values() for value in state.values() if value.dim())
    stage.recorder.events.clear()
    case.loss(model, 0, 0, 0).backward()
    return (states + max(event.alive for event in stage.recorder.events),
            [[flat.layout.padded for flat in unit.flats] for unit in stage.units])


@pytest.mark.parametrize("stage, prefetch, in_flight",
                         [(0, 1, 2), (1, 1, 2), (2, 1, 0), (2, 1, 1), (2, 1, 2), (3, 0, 0), (3, 0, 1), (3, 1, 1), (3, 1, 2), (3, 2, 1), (3, 9, 9)])
@pytest.mark.parametrize("world_size", (2, 3))
def test_the_recorded_peak_is_the_formulas(pool, world_size, stage, prefetch, in_flight):
    case = Case(stage, make=even, options=(("prefetch", prefetch), ("in_flight", in_flight)))
    for found, (root, *units) in pool(world_size).run(recorded_peak, case):
        assert found == states_peak(root, [size for (size,) in units], stage, world_size, prefetch, in_flight)


def events(case: Case) -> list[dict]:
    """What happened in the third step."""
    model, optimizer = worlds.sharded(case)
    worlds.train_plain(replace(case, steps=3), model, optimizer)
    return model.zero.recorder.of_step(2)


def check_overlap(events: list[dict], verb: str) -> None:
    """In the forward and in the backward, while a unit computes, the one after it is being gathered.

    A collective's event runs from its issue until the rank waited for it, so it must begin before the unit's compute
    is over, and end after it.
    """
    gathers = [event for event in events if event["verb"] == "all_gather" and event["unit"] != "root"]
    computes = [event for event in events if event["verb"] == verb and event["unit"] != "root"]
    assert len(computes) == 6
    for now, later in pairwise(computes):
        over = now["end"]
        assert any(gather["unit"] == later["unit"] and gather["start"] < over < gather["end"] for gather in gathers), \
            f"{later['unit']} is not being gathered when the {verb} of {now['unit']} ends"


def test_overlap(pool):
    for found in pool(2).run(events, prefetching(1, True)):
        for verb in ("forward", "backward"):
            check_overlap(found, verb)


def gradients_at_gathers(case: Case) -> dict[str, tuple[int, int]]:
    """By unit: how many gradients of the unit that computes are there, and how many come, when its gather begins."""
    model, optimizer = worlds.sharded(case)
    worlds.train_plain(replace(case, steps=2), model, optimizer)
    stage, found = model.zero, {}
    begin = stage.start_unshard

    def start_unshard(unit):
        if stage.backward is not None and not unit.is_allocated:
            flats, awaited = stage.backward.order[stage.backward.place].flats, stage.backward.awaited
            found[unit.name] = sum(flat.trainable - len(awaited[flat]) for flat in flats), sum(flat.trainable for flat in flats)
        begin(unit)

    stage.start_unshard = start_unshard
    case.loss(model, 0, 0, 0).backward()
    return found


def test_a_reduction_has_the_first_half_of_a_backward_and_the_gather_ahead_the_second(pool):
    for found in pool(2).run(events, prefetching(1, True)):
        computes = [event for event in found if event["verb"] == "backward" and event["unit"] != "root"]
        reductions = {event["unit"]: event for event in found if event["verb"] == "reduce_scatter"}
        for before, now in pairwise(computes[:-1]):  # nobody is ahead of the last
            assert now["start"] < reductions[before["unit"]]["end"] < now["end"], now["unit"]
    for found in pool(2).run(gradients_at_gathers, prefetching(1, True)):
        assert {found[name] for name in ("h.3", "h.2", "h.1", "h.0")} == {(6, 12)}


# -- elements sent ---------------------------------------------------------------------------------------------------

def sent(cases: list[Case]) -> list[dict]:
    """Elements and bytes this rank sent in the second step of each case."""
    found = []
    for case in cases:
        model, optimizer = worlds.sharded(case)
        comm = model.zero.comm
        worlds.train_plain(replace(case, steps=1), model, optimizer)
        before = sum(comm.elements.values()), sum(comm.sent.values()), comm.padding, comm.metadata
        worlds.train_plain(replace(case, steps=1), model, optimizer)
        if case.stage == 3:  # state_dict gathers once more
            gathers = (comm.world_size - 1) * sum(flat.layout.real(comm.rank) for flat in model.zero.flats)
            before = before[0] + gathers, before[1] + gathers * model.zero.flats[0].full.element_size(), *before[2:]
        after = sum(comm.elements.values()), sum(comm.sent.values()), comm.padding, comm.metadata
        found.append([now - then for now, then in zip(after, before, strict=True)])
    return found


@pytest.mark.parametrize("world_size", (2, 3, 4))
def test_elements_sent(pool, world_size):
    """2Ψ, 2Ψ, 2Ψ, 3Ψ × (N-1)/N without accumulation; 2Ψ, 2Ψ, (G+1)Ψ, 3GΨ and 2GΨ with it. Summed over the ranks, exactly."""
    params, G = sum(param.numel() for param in worlds.gpt().parameters()), 4
    kept = (("reshard_after_forward", False),)
    factors = [(Case(stage, world_size, rank_map=rank_map, bucket_size=size, param_dtype=dtype), factor)
               for stage, factor in enumerate((2, 2, 2, 3))
               for rank_map, size, dtype in (("flat", None, None), ("greedy", None, None), ("flat", 100, torch.bfloat16))]
    factors += [(Case(stage, world_size, accumulation=G), factor) for stage, factor in enumerate((2, 2, G + 1, 3 * G))]
    factors += [(Case(3, world_size, options=kept), 2), (Case(3, world_size, accumulation=G, options=kept), 2 * G)]
    by_rank = pool(world_size).run(sent, [case for case, _ in factors])
    for (case, factor), found in zip(factors, zip(*by_rank, strict=True), strict=True):
        elements, nbytes, padding, control = zip(*found, strict=True)
        assert sum(elements) == factor * params * (world_size - 1), case
        assert sum(nbytes) == sum(elements) * (4 if case.param_dtype is None else 2), case
        assert all(0 < bytes_ < 1000 * case.accumulation for bytes_ in control), case
        if case.rank_map == "greedy":
            assert not any(padding), case
        elif case.bucket_size is None:  # each rank by itself, up to its part of the padding
            slack = 3 * factor * world_size * world_size
            assert all(abs(count - factor * params * (world_size - 1) / world_size) < slack for count in elements), case
            assert all(0 <= bytes_ <= 4 * slack for bytes_ in padding), case
