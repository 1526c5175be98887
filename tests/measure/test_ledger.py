"""The ledger against torch's own MemTracker, against brute force, and against what must not slip through."""

import gc
import io
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import _len_torch_dispatch_stack
from torch.utils.checkpoint import checkpoint

from zerocourse.errors import BadInput, OutOfMemory
from zerocourse.measure.ledger import Ledger, Snapshot
from zerocourse.models.gpt2 import build_model

MIB = 2**20


def mlp(width=64, layers=4):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))


def nbytes(tensors) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def clean() -> bool:
    """No mode on the stack, and the storage's method is its own."""
    return _len_torch_dispatch_stack() == 0 and torch.UntypedStorage.resize_ is torch._C.StorageBase.resize_


@pytest.fixture(autouse=True)
def _forget_what_memtracker_leaves_on_the_class():
    yield
    if "resize_" in vars(torch.UntypedStorage):
        del torch.UntypedStorage.resize_


# -- against torch's own tracker ------------------------------------------------------------------------------------


def step_of_gpt(counter):
    """One whole training step of a tiny GPT under a fresh counter: `counter(model, optimizer, batch)`."""
    torch.manual_seed(0)
    model = build_model("gpt2-tiny", n_layer=2)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randint(256, (4, 64))
    with counter(model, optimizer, batch) as counted:
        loss = model(batch, batch)
        loss.backward()
        optimizer.step()
        return counted, counted.now() if isinstance(counted, Ledger) else counted.get_tracker_snapshot("current")


def test_agrees_with_memtracker():
    def theirs(model, optimizer, batch):
        tracker = MemTracker()
        tracker.track_external(model, optimizer, batch)
        return tracker

    tracker, theirs_now = step_of_gpt(theirs)
    theirs_now = {getattr(kind, "value", kind): n for kind, n in theirs_now[torch.device("cpu")].items()}
    theirs_peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    gc.collect()  # the tracker and the model it watched are a cycle: nothing of it may be alive in our turn
    ledger, ours = step_of_gpt(lambda model, optimizer, batch: Ledger(model, optimizer).track(batch))

    print(f"peak: MemTracker {theirs_peak:,}, ledger {ledger.peak:,}; now: {theirs_now}, {ours.as_dict()}")
    assert ours.parameters == theirs_now["Parameter"]
    assert ours.gradients == theirs_now["Gradient"] == ours.parameters
    assert ours.optimizer + ours.scalars == theirs_now["Optstate"]
    assert ours.optimizer == 2 * ours.parameters  # the step counters are not in it
    assert ledger.peak == pytest.approx(theirs_peak, rel=0.01)
    assert ledger.at_peak.total == ledger.peak
    assert ours.total == pytest.approx(theirs_now["Total"], rel=0.01)


# -- against brute force --------------------------------------------------------------------------------------------

VERBS = ["new", "view", "slice", "add", "inplace", "forget", "resize", "grow", "numpy", "load", "alias", "sparse",
         "detach", "two"]
OPERATIONS = st.tuples(st.sampled_from(VERBS), st.integers(0, 20), st.integers(0, 2000))


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATIONS, min_size=1, max_size=40))
def test_random_programs_equal_a_brute_force_count(program):
    alive: list[torch.Tensor] = []

    def brute_force():
        parts = [part for t in alive for part in ((t._indices(), t._values()) if t.is_sparse else (t,))]
        return sum({part.untyped_storage()._cdata: part.untyped_storage().nbytes() for part in parts}.values())

    with Ledger() as ledger:
        for verb, which, size in program:
            dense = [t for t in alive if not t.is_sparse and t.untyped_storage().nbytes() >= t.nbytes]
            one = dense[which % len(dense)] if dense else None
            if verb == "forget" and alive:
                del alive[which % len(alive)]
            elif verb == "numpy":
                alive.append(torch.from_numpy(np.zeros(size, dtype=np.float32)).view(-1))
            elif verb == "load":
                file = io.BytesIO()
                torch.save(torch.zeros(size), file)
                file.seek(0)
                alive.append(torch.load(file) + 0)
            elif one is None or verb == "new":
                alive.append(torch.zeros(size))
            elif verb == "view":
                alive.append(one.reshape(-1))
            elif verb == "slice":
                alive.append(one.flatten()[: one.numel() // 2])
            elif verb == "add":
                alive.append(one + 1)
            elif verb == "inplace":
                one.add_(1)
            elif verb == "resize" and one.untyped_storage().resizable():  # as stage 3: memory away under living views
                storage, held = one.untyped_storage(), one.untyped_storage().nbytes()
                storage.resize_(0)
                assert ledger.alive == brute_force()
                if size % 2:
                    storage.resize_(held)
            elif verb == "grow" and one.is_contiguous() and one.untyped_storage().resizable():
                one.resize_(one.numel() + size)
            elif verb == "alias":
                alive.append(one)
            elif verb == "sparse":
                alive.append(one.flatten().to_sparse())
            elif verb == "detach":
                alive.append(one.detach())
            elif verb == "two":
                alive.extend(torch.aminmax(one) if one.numel() else [])
            one = dense = storage = None
            assert ledger.alive == brute_force(), verb
            assert ledger.peak >= ledger.alive
        alive.clear()
        assert ledger.alive == 0
        assert ledger.now() == Snapshot()


def test_what_autograd_saved_stays_counted():
    x = torch.ones(1000, requires_grad=True)
    with Ledger().track(x) as ledger:
        y = x.exp()  # exp saves its result
        y = y.sum()
        gc.collect()
        assert ledger.alive == 4000 + 4000 + 4
        y.backward()
        del y
        assert ledger.alive == 4000 + 4000  # x and its gradient
        assert ledger.peak >= 4000 * 3


def test_the_backward_pass_is_seen():
    model, x = mlp(), torch.randn(8, 64)
    with Ledger(model).track(x) as ledger:
        model(x).sum().backward()
        now = ledger.now()
        assert now.gradients == now.parameters == nbytes(model.parameters())
        assert now.rest == x.nbytes  # all activations are gone
        assert ledger.at_peak.rest > 4 * x.nbytes


def test_freed_on_another_thread():
    with Ledger() as ledger:
        box = [torch.zeros(1000)]
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        assert ledger.alive == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_lowers_the_peak_and_leaves_the_same(reentrant):
    def run(checkpointed):
        model, x = mlp(), torch.randn(128, 64)
        with Ledger(model).track(x) as ledger:
            y = x.requires_grad_()
            for layer in model:
                y = checkpoint(layer, y, use_reentrant=reentrant) if checkpointed else layer(y)
            y.sum().backward()
            del y
            return ledger.peak, ledger.now()

    peak, plain = run(False)
    peak_checkpointed, checkpointed = run(True)
    assert checkpointed == plain
    assert peak_checkpointed < peak


# -- what must show up ----------------------------------------------------------------------------------------------


@pytest.fixture
def trained():
    """A model after one step, gradients freed, in an entered ledger."""
    model, x = mlp(), torch.randn(8, 64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(free=True):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=free)

    with Ledger(model, optimizer).track(x) as ledger:
        step()
        yield ledger, model, step


def test_steady_state_is_model_states_and_the_batch(trained):
    ledger, model, step = trained
    size = nbytes(model.parameters())
    expected = Snapshot(parameters=size, optimizer=2 * size, scalars=4 * 8, rest=8 * 64 * 4)
    assert ledger.now() == expected
    step()
    assert ledger.now() == expected
    assert ledger.alive == expected.total
    assert expected.as_dict()["alive_bytes"] == expected.total == sum(expected.as_dict().values()) / 2


def test_a_planted_buffer(trained):
    ledger, model, _ = trained
    before = ledger.now()
    model.register_buffer("cache", torch.zeros(MIB, dtype=torch.uint8), persistent=False)
    after = ledger.now()
    assert after.buffers - before.buffers == after.total - before.total == MIB


def test_a_planted_buffer_no_operation_has_touched(trained):
    ledger, model, _ = trained
    before = ledger.now()
    model.register_buffer("cache", torch.from_numpy(np.zeros(MIB, dtype=np.uint8)))
    assert ledger.now().buffers - before.buffers == MIB
    assert ledger.alive == before.total + MIB


def test_a_kept_gather(trained):
    ledger, model, _ = trained
    before = ledger.now()
    kept = torch.cat([param.detach().flatten() for param in model.parameters()])
    after = ledger.now()
    assert after.rest - before.rest == after.total - before.total == kept.nbytes


def test_a_gradient_that_was_not_freed(trained):
    ledger, model, step = trained
    step(free=False)  # zero_grad writes zeros and keeps the memory
    assert ledger.now().gradients == nbytes(model.parameters())
    del model[0][0].weight.grad
    assert ledger.now().gradients == nbytes(model.parameters()) - 64 * 64 * 4


def test_memory_a_storage_got_behind_our_back(trained):
    ledger, model, _ = trained
    kept = torch.zeros(10)
    before = ledger.now()
    for tensor in (model[0][0].weight, kept):
        storage = tensor.untyped_storage()
        torch._C.StorageBase.resize_(storage, storage.nbytes() + MIB)  # not through the method that is watched
    after = ledger.now()
    assert after.parameters - before.parameters == after.rest - before.rest == MIB
    assert ledger.alive == after.total


def test_tensors_that_existed_count_from_their_first_use():
    old = [torch.zeros(size) for size in (1, 10, 100, 1000)]
    order = torch.arange(100)
    with Ledger() as ledger:
        assert ledger.alive == 0
        made = torch.frombuffer(bytearray(400), dtype=torch.float32)  # no operation
        _ = old[0].size(), made.shape
        assert ledger.alive == 0
        made.sum()
        assert ledger.alive == 400
        torch.cat(old[:3]).sum()
        assert ledger.alive == 400 + 444
        torch.searchsorted(made, old[3], sorter=order)
        assert ledger.alive == 400 + 444 + 4000 + 800


def test_track_counts_what_exists():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    size = nbytes(model.parameters())
    ledger = Ledger()
    assert ledger.track(model).alive == 2 * size  # and its gradients
    assert ledger.track(optimizer).alive == 3 * size
    batch = {"tokens": [torch.zeros(10)], "none": None}
    assert ledger.track(batch, batch["tokens"][0][2:]).alive == 3 * size + 40
    assert ledger.peak == ledger.alive


def test_the_peak_says_what_it_was_made_of(trained):
    ledger, model, step = trained
    ledger.reset_peak()
    assert ledger.peak == ledger.alive
    step()
    peak = ledger.at_peak
    assert peak.total == ledger.peak > ledger.alive
    assert peak.parameters == nbytes(model.parameters()) and peak.optimizer == 2 * peak.parameters
    with_all_gradients = sum((peak.parameters, peak.parameters, peak.optimizer, peak.scalars))
    assert ledger.peak >= with_all_gradients
    # The peak is where the last layer's gradient comes out of its operation: it is no `.grad` yet.
    assert peak.gradients == peak.parameters * 3 // 4


def test_placeholders_count_as_their_storage():
    model = mlp(width=512, layers=1)
    none = torch.full((), float("nan"))
    for param in model.parameters():
        param.data = none.expand(param.shape)
    assert Ledger(model).now().parameters == 4


def test_the_meta_device_has_no_memory():
    with torch.device("meta"):
        model = mlp()
    with Ledger(model) as ledger:
        torch.empty(MIB, device="meta")
        assert ledger.now() == Snapshot() and ledger.peak == 0


def test_sparse_gradients():
    model = nn.Embedding(1000, 16, sparse=True)
    with Ledger(model) as ledger:
        model(torch.tensor([1, 5])).sum().backward()
        assert ledger.now().gradients == 2 * 16 * 4 + 2 * 8  # values and indices of two rows


def test_fake_tensors_count_as_real_when_entered_inside_their_mode():
    def run():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        with Ledger(model, optimizer) as ledger:
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            return ledger.now(), ledger.peak, ledger.at_peak

    with FakeTensorMode():
        fake = run()
    assert fake == run()


@pytest.fixture
def rank_of_four():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


def test_dtensors_count_as_this_ranks_part(rank_of_four):
    mesh = init_device_mesh("cpu", (4,))
    a = DTensor.from_local(torch.zeros(1000), mesh, [Shard(0)])
    with Ledger().track(a) as ledger:
        kept = a * 2
        assert kept.numel() == 4000
        assert ledger.alive == ledger.peak == 2 * 4000  # nor the shapes of all four, which DTensor works out
        whole = torch.softmax(kept, dim=0)  # is gathered for that
        assert ledger.alive == 2 * 4000 + 16000
        assert ledger.peak >= 2 * 4000 + 2 * 16000, "the operations inside a DTensor's operation were not seen"
        del whole


def test_fsdp2(rank_of_four):
    from torch.distributed.fsdp import fully_shard

    model = mlp()
    whole = nbytes(model.parameters())
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    with Ledger(model, optimizer) as ledger:
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        now = ledger.now()
    assert (now.parameters, now.gradients, now.optimizer) == (whole // 4, whole // 4, whole // 2)
    assert whole / 4 * 4 + whole / 4 < ledger.peak < 3 * whole  # at least one layer was gathered


# -- a stage's own tensors ------------------------------------------------------------------------------------------


class Stage:
    def __init__(self, **tensors):
        self.tensors = lambda: tensors


def test_a_stage_lists_tensors_and_the_ledger_reads_them():
    full, shard, master, bucket = torch.zeros(100), torch.zeros(50), torch.zeros(25), torch.zeros(7)
    stage = Stage(parameters=[full, shard, shard[3:]], optimizer=[master], gradients=[bucket])
    optimizer = torch.optim.AdamW([nn.Parameter(master[:10]), nn.Parameter(master[10:])])
    with Ledger(state=stage, optimizer=optimizer) as ledger:
        now = ledger.now()
        assert (now.parameters, now.gradients, now.optimizer) == (600, 28, 100)
        full.untyped_storage().resize_(0)
        assert ledger.alive == now.total - 400
        assert ledger.now().parameters == 200
        full.untyped_storage().resize_(400)
        assert ledger.now() == now
        assert ledger.peak == now.total


def test_the_models_stage_is_found():
    model = mlp()
    model.zero = Stage(gradients=[torch.zeros(10)])
    assert Ledger(model).now().gradients == 40
    model.zero = nn.Linear(1, 1)  # somebody's module of that name
    assert Ledger(model).now().gradients == 0


def test_an_unknown_kind_is_refused():
    with pytest.raises(BadInput, match="'grads'.*parameters, gradients, optimizer"):
        Ledger(state=Stage(grads=[])).now()


def test_an_optimizer_alone_says_what_are_parameters():
    param = nn.Parameter(torch.zeros(10))
    param.grad = torch.zeros(10)
    now = Ledger(optimizer=torch.optim.SGD([param])).now()
    assert (now.parameters, now.gradients) == (40, 40)


def test_moments_of_a_scalar_parameter_are_not_step_counters():
    param = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.AdamW([param])
    param.grad = torch.ones(())
    optimizer.step()
    now = Ledger(optimizer=optimizer).now()
    assert (now.optimizer, now.scalars) == (8, 4)


# -- the budget -----------------------------------------------------------------------------------------------------


def test_budget_in_the_forward():
    with Ledger(budget="1MiB") as ledger:
        kept = torch.zeros(MIB // 8)
        with pytest.raises(OutOfMemory) as caught:
            torch.zeros(MIB)
        message = str(caught.value)
        assert "\n" not in message
        for part in ("rank 0", "aten.zeros.default", "4.00 MiB", "1,048,576 bytes", "rest"):
            assert part in message, message
        assert ledger.alive == kept.nbytes  # the refused tensor is gone, although the exception is kept
        kept = torch.zeros(MIB // 8)  # what fits still goes


def test_budget_in_the_backward():
    model, x = mlp(width=256), torch.randn(8, 256)
    with Ledger(model) as ledger:
        loss = model(x).sum()
        ledger.budget = ledger.alive + 256 * 256 * 4
        with pytest.raises(OutOfMemory, match=r"asked for .*parameters 1\.0. MiB"):
            loss.backward()
    assert clean()


def test_budget_refuses_a_resize_before_it_happens():
    full = torch.zeros(1000)
    full.untyped_storage().resize_(0)
    with Ledger(budget=3999).track(full) as ledger:
        with pytest.raises(OutOfMemory, match="resize_ asked for 3.91 KiB"):
            full.untyped_storage().resize_(4000)
        assert full.untyped_storage().nbytes() == 0 == ledger.alive


def test_budget_that_the_model_alone_exceeds():
    with pytest.raises(OutOfMemory, match="what exists already"):
        Ledger(mlp(), budget=1000).__enter__()
    assert clean()


def test_a_budget_without_a_unit_is_refused():
    with pytest.raises(BadInput):
        Ledger(budget="2G")


# -- entering and leaving -------------------------------------------------------------------------------------------


def test_ledgers_nest():
    with Ledger() as outer:
        a = torch.zeros(100)
        with Ledger() as inner, inner:
            b = torch.zeros(10)
            b.untyped_storage().resize_(400)
            assert (outer.alive, inner.alive) == (800, 400)
        assert inner.peak == 400 and outer.peak == 800
        a.untyped_storage().resize_(0)  # the outer one still hears of it
        assert outer.alive == 400
    assert clean()


def test_an_exception_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), Ledger(), Ledger():
        torch.zeros(10)
        raise ZeroDivisionError
    assert clean()


def test_within_memtracker_and_around_it():
    with MemTracker(), Ledger():
        torch.zeros(10).untyped_storage().resize_(0)
    with Ledger(), MemTracker():
        torch.zeros(10).untyped_storage().resize_(0)
    assert clean()


def test_entered_twice_in_a_row_it_counts_on():
    ledger = Ledger()
    with ledger:
        kept = torch.zeros(100)
    torch.zeros(1000)  # outside: not seen
    with ledger:
        assert ledger.alive == ledger.peak == 400
        del kept
        assert ledger.alive == 0


def test_one_device_alone():
    with Ledger(device="cuda") as ledger:
        torch.zeros(100)
        assert ledger.alive == 0
    with Ledger(device="cpu") as ledger:
        kept = torch.zeros(100)
        assert ledger.alive == kept.nbytes
    assert ledger.device_peak is None


def test_compiled_tools_are_not_loaded():
    code = ("import sys, torch; from zerocourse.measure.ledger import Ledger\n"
            "with Ledger(): torch.ones(3) + 1\n"
            "sys.exit('torch._dynamo' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
