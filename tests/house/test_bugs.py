"""The tests of the tests: famous bugs, planted one at a time, and the check that goes red for each.

A bug is planted from outside, as one of the functions that a stage takes (`ops=`), as an optimizer, a rank map or a
loss, or as a change of a class for the time of the run. The checks are those of the real tests.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import test_stages
import test_traps
import torch
import torch.distributed as dist
import worlds
from worlds import STAGES, Case, Stack, check_exact, check_whole, runs_of, squares

from zerocourse.comm import Comm
from zerocourse.launch.processes.failures import RankError
from zerocourse.zero.buffers.buffer import FlatBuffer
from zerocourse.zero.passes.reducing import Reductions
from zerocourse.zero.shard import STAGES as STAGE_TYPES


def with_ops(case: Case, **functions) -> Case:
    """The case with functions in place of the stage's own; each is `bug(own)`, and gives a function like `own`."""
    own = STAGE_TYPES[case.stage].ops
    return replace(case, options=case.options + (("ops", {name: bug(getattr(own, name)) for name, bug in functions.items()}),))


def red(check, *args, match: str | None = None, **kwargs) -> None:
    """The check must fail, and for the reason `match`."""
    with pytest.raises(AssertionError, match=match):
        check(*args, **kwargs)


@contextmanager
def patched(owner: type, name: str, bug):
    """`owner.name` is `bug(own)` inside."""
    own = getattr(owner, name)
    setattr(owner, name, bug(own))
    try:
        yield
    finally:
        setattr(owner, name, own)


def of_stack(stage: int, **fields) -> Case:
    return Case(stage, **{"make": Stack, "loss": squares, "steps": 2} | fields)


def test_the_checks_are_green_without_a_bug(pool):
    check_exact(pool, [with_ops(of_stack(stage), reduce=lambda own: own, step=lambda own: own) for stage in STAGES])


# -- who takes part --------------------------------------------------------------------------------------------------

def skip_rank_zero(own):
    """`if rank_id:` was meant to ask whether there is a rank."""
    return lambda flats, comm, optimizer_step: own(flats, comm, optimizer_step if comm.rank else lambda *flats: None)


@pytest.mark.parametrize("stage", STAGES)
def test_bug_rank_zero_is_skipped(pool, stage):
    red(check_exact, pool, [with_ops(of_stack(stage), step=skip_rank_zero)], match="differ|losses")


def only_where_it_was_used(own):
    """A collective in a branch that only some ranks take."""
    def reduce(self, flat):
        if flat.unreduced:
            own(self, flat)

    return reduce


def impatient(own):
    """A wait of a second instead of two minutes."""
    def init(self, group=None, timeout=1.0):
        own(self, dist.new_group() if group is None else group, timeout=1.0)

    return init


@contextmanager
def a_branch_around_a_collective():
    with patched(Reductions, "start", only_where_it_was_used), patched(Comm, "__init__", impatient):
        yield


@pytest.mark.parametrize("stage", (0, 3))
def test_bug_a_collective_in_a_branch(pool, stage):
    """It ends in an error that says where each rank was, and not in a hang."""
    case = of_stack(stage, make=test_traps.Branches, loss=test_traps.special_on_rank_one, bucket_size=20)
    with pytest.raises(RankError, match=r"CollectiveError: .*rank 0 was in .*rank 1 was in"):
        check_exact(pool, [case], around=a_branch_around_a_collective)


# -- what is reduced -------------------------------------------------------------------------------------------------

def sum_of_ranks(own):
    """Added up and never divided by N: on two ranks as if the learning rate were twice what it is."""
    def reduce(flat, comm):
        flat.grad.mul_(comm.world_size)
        return own(flat, comm)

    return reduce


def one_batch(model, step, micro, rank):
    return worlds.gpt_loss(model, 0, micro, rank)


@pytest.mark.parametrize("stage", STAGES)
def test_bug_the_sum_for_the_average(pool, stage):
    case = with_ops(Case(stage, optimizer=worlds.sgd, loss=one_batch), reduce=sum_of_ranks)
    (_, runs), = runs_of(pool, [case])
    assert runs[0].losses[0] > runs[0].losses[1] > runs[0].losses[2]  # the loss falls, which proves nothing
    red(worlds.check_bitwise, runs[0], worlds.exact(case)[0], case, match="losses")


def own_gradients(own):
    """Never reduced at all."""
    def reduce(flat, comm):
        flat.grad_shard = flat.grad[flat.own] * comm.world_size

    return reduce


@pytest.mark.parametrize("stage", STAGES)
def test_bug_nothing_is_reduced(pool, stage):
    red(check_exact, pool, [with_ops(of_stack(stage), reduce=own_gradients)], match="differs|losses")


def same_rows(model, step, micro, rank):
    return squares(model, step, micro, 0)


def test_the_same_data_on_every_rank_hides_that(pool):
    """Green, with nothing reduced: why every rank has other data in these tests."""
    check_exact(pool, [with_ops(of_stack(stage, loss=same_rows), reduce=own_gradients) for stage in (0, 2)])


def weights_are_reduced(own):
    """The hook's argument is the parameter, and not its gradient: this averages the weights."""
    def reduce(flat, comm):
        flat.grad_shard = flat.grad[flat.own].clone()
        comm.all_reduce(flat.shard).div_(comm.world_size)

    return reduce


def weights_are_broadcast(own):
    """The backward sends rank 0's weights round, where it should reduce gradients."""
    def reduce(flat, comm):
        flat.grad_shard = flat.grad[flat.own].clone()
        comm.broadcast(flat.full, flat.name)

    return reduce


@pytest.mark.parametrize("bug", (weights_are_reduced, weights_are_broadcast))
@pytest.mark.parametrize("stage", (0, 1))
def test_bug_weights_for_gradients(pool, stage, bug):
    """Below, the numbers tell; in stage 1 a rank's slice was written, which the stage notices first."""
    with pytest.raises((AssertionError, RankError), match="differs|losses|were written"):
        check_exact(pool, [with_ops(of_stack(stage), reduce=bug)])


def only_the_last_micro_batch(own):
    def collect(self, key, param):
        self.unreduced.discard(key)
        own(self, key, param)

    return collect


@contextmanager
def micro_batches_overwrite_each_other():
    with patched(FlatBuffer, "collect", only_the_last_micro_batch):
        yield


@pytest.mark.parametrize("stage", (0, 1))
def test_bug_only_the_last_micro_batch_is_reduced(pool, stage):
    check_exact(pool, [of_stack(stage, accumulation=1)], around=micro_batches_overwrite_each_other)
    red(check_exact, pool, [of_stack(stage, accumulation=2)], around=micro_batches_overwrite_each_other, match="differs|losses")


def in_bf16(own):
    """Half-precision terms added in half precision."""
    def reduce(flat, comm):
        rows = [torch.empty_like(flat.grad) for _ in range(comm.world_size)]
        dist.all_gather(rows, flat.grad)
        flat.take_bucket()
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        flat.accumulate(total[flat.own].clone())

    return reduce


def test_bug_sums_in_half_precision(pool):
    case = Case(2, 4, param_dtype=torch.bfloat16)
    red(check_exact, pool, [with_ops(case, reduce=in_bf16)], match="differs|losses")


def norm_of_a_shard(own):
    return lambda self, values, op="sum": values if op == "sum" else own(self, values, op)


@contextmanager
def norms_are_not_added_up():
    with patched(Comm, "all_reduce", norm_of_a_shard):
        yield


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_bug_the_norm_of_a_shard(pool, stage):
    for case, runs in runs_of(pool, [Case(stage, optimizer=worlds.sgd, clip=0.05)], norms_are_not_added_up):
        red(check_whole, runs, case, match="norm|loss")


# -- how it begins and how it steps ----------------------------------------------------------------------------------

def seeded_by_rank():
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    return torch.nn.Linear(6, 6)


@contextmanager
def nothing_is_broadcast():
    with patched(Comm, "broadcast", lambda own: lambda self, values, unit: values):
        yield


@pytest.mark.parametrize("stage", STAGES)
def test_bug_replicas_of_different_seeds(pool, stage):
    case = of_stack(stage, make=seeded_by_rank)
    check_exact(pool, [case])
    red(check_exact, pool, [case], around=nothing_is_broadcast, match="differ|losses")


class OneCount(torch.optim.AdamW):
    """One step count for all parameters, which advances with each of them."""

    def step(self, closure=None):
        count = 0
        for group in self.param_groups:
            for param in group["params"]:
                if "step" in self.state[param]:
                    self.state[param]["step"] += count
                count += 1
        return super().step(closure)


def l2_for_decay(params):
    return torch.optim.Adam(params, lr=3e-3, weight_decay=0.1)


def one_count(params):
    return OneCount(params, lr=3e-3, weight_decay=0.1)


@pytest.mark.parametrize("bug", (l2_for_decay, one_count))
@pytest.mark.parametrize("stage", STAGES)
def test_bug_another_adam(pool, stage, bug):
    case = of_stack(stage)
    for _, runs in runs_of(pool, [replace(case, optimizer=bug)]):
        red(worlds.check_bitwise, runs[0], worlds.exact(case)[0], case, match="differs|losses")


# -- sizes and overlap, which losses do not show ---------------------------------------------------------------------

def test_bug_an_optimizer_that_is_not_sharded(pool):
    """Stage 0 under the name of stages 1, 2 and 3: all losses and parameters are right, and the bytes are not."""
    real = Case(0)
    check_exact(pool, [real])
    by_rank = [found for found, in pool(2).run(test_stages.states_held, [real])]
    test_stages.check_bytes(real, by_rank)
    for stage in (1, 2, 3):
        red(test_stages.check_bytes, replace(real, stage=stage), by_rank, match="stage")


def unbalanced(shapes, world_size):
    """A knob for balance, at its maximum: everything to the last rank."""
    return dict.fromkeys(shapes, world_size - 1)


def test_bug_a_balance_that_is_none(pool):
    case = Case(3, rank_map=unbalanced)
    check_exact(pool, [case])
    by_rank = [found for found, in pool(2).run(test_stages.states_held, [case])]
    red(test_stages.check_bytes, replace(case, rank_map=None), by_rank)


def thrown_away(own):
    """The gathered parameters go nowhere: the module goes on with a copy of its own."""
    def unshard(flat, comm):
        own(flat, comm).wait()
        rest = flat.full.clone()
        flat.storage.free()
        flat.full.set_(rest.untyped_storage(), 0, rest.shape)
        for key, shape in flat.layout.shapes.items():
            flat.views[key] = flat.full[flat.layout.param_slice(key)].view(shape)

    return unshard


def kept(own):
    """Nothing is freed after use."""
    return lambda flat: None


@pytest.mark.parametrize("functions", ({"unshard": thrown_away}, {"reshard": kept}))
def test_bug_a_gather_that_shards_nothing(pool, functions):
    case = with_ops(test_stages.prefetching(1, True), **functions)
    for found in pool(2).run(test_stages.in_flight, case):
        red(test_stages.check_in_flight, found, 1, True)


def at_once(own):
    """`synchronize()` right after an asynchronous call."""
    def issue(flat, comm):
        handle = own(flat, comm)
        handle.wait()
        return handle

    return issue


@pytest.mark.parametrize("verb", ("forward", "backward"))
def test_bug_an_overlap_that_is_none(pool, verb):
    case = with_ops(test_stages.prefetching(1, True), unshard=at_once)
    check_exact(pool, [case])  # nothing else is wrong with it
    for found in pool(2).run(test_stages.events, case):
        red(test_stages.check_overlap, found, verb, match="is not being gathered")
    for found in pool(2).run(test_stages.events, test_stages.prefetching(0, True)):
        red(test_stages.check_overlap, found, verb, match="is not being gathered")
