"""What torch keeps to itself: the names that the package uses stand in one file, and each is as we know it."""

import ast
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerocourse.comm import torch_private

HOUSE = Path(torch_private.__file__).parents[1]
OTHERS = {  # private names that are not torch's, and whose they are
    "argparse": {"_actions", "_option_string_actions", "_subparsers"}, "collections": {"_asdict", "_replace"},
    "os and sys": {"_current_frames", "_exit", "_getframe"}, "multiprocessing": {"_config"},
    "accelerate": {"_shared_state"}, "transformers": {"_attn_implementation"},
}
STILL_DIRECT = ("zero/mini.py",)  # the whole idea in one file, which imports little
LOADS_THE_COMPILER = "launch/processes/fork_server.py"  # imports torch._dynamo, and nothing of the package's


def dotted(node: ast.AST) -> str:
    """`a.b.c` of such a node, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    base = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base else ""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def bound(tree: ast.AST) -> set[str]:
    """Names with an underscore that a file gives to anything of its own."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                names.add(node.attr)
    return names


def private_uses(source: str, known: set[str]) -> list[str]:
    """The private names of torch in a file: imported, reached from torch's modules, or read of an object. known: names of
    objects that are nothing new."""
    found, tree = [], ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] == "torch":
                found += [f"{module}.{alias.name}" for alias in node.names if is_private(f"{module}.{alias.name}")]
            case ast.Import():
                found += [alias.name for alias in node.names if alias.name.split(".")[0] == "torch" and is_private(alias.name)]
            case ast.Attribute(attr=name) if is_private(name) and name not in known:
                found.append(dotted(node) or name)
    return found


def sources() -> dict[str, str]:
    """The package's files but that one."""
    return {str(path.relative_to(HOUSE)): path.read_text() for path in sorted(HOUSE.rglob("*.py"))
            if path != Path(torch_private.__file__)}


def test_private_names_stand_in_one_file():
    files = sources()
    known = set().union(*torch_private.ATTRIBUTES.values(), *OTHERS.values(), *map(bound, map(ast.parse, files.values())))
    used = {file: set(private_uses(text, known)) for file, text in files.items() if not file.startswith(STILL_DIRECT)}
    used[LOADS_THE_COMPILER] -= {"torch._dynamo"}
    assert {file: names for file, names in used.items() if names} == {}


def names_of_the_file() -> set[str]:
    tree = ast.parse(Path(torch_private.__file__).read_text())
    imported = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    own = {name.id for node in tree.body if isinstance(node, ast.Assign) for name in node.targets}
    names = imported | own | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in names - {"ATTRIBUTES", "nn"} if not is_private(name)}


def test_each_private_name_has_a_test():
    text = Path(__file__).read_text()
    assert {name for name in names_of_the_file() if f"torch_private.{name}" not in text} == set()


@pytest.mark.parametrize("source, found", [
    ("from torch._guards import active_fake_mode", ["torch._guards.active_fake_mode"]),
    ("from torch.utils._pytree import tree_map", ["torch.utils._pytree.tree_map"]),
    ("import torch._dynamo", ["torch._dynamo"]),
    ("torch._C.x()", ["torch._C"]),
    ("nn.utils.clip_grad._get_total_norm(a)", ["nn.utils.clip_grad._get_total_norm"]),
    ("tensor._cdata", ["tensor._cdata"]),
    ("first()._cdata", ["_cdata"]),
    ("self._own\nself.__class__\ntorch.__version__\nfrom ._beside import x\nimport _thread", []),
])
def test_a_private_name_is_seen(source, found):
    assert sorted(private_uses(source, {"_own"})) == sorted(found)


# each name, as we know it

@pytest.mark.parametrize("holder, name", [(holder, name) for holder, names in torch_private.ATTRIBUTES.items() for name in names])
def test_objects_have_the_attribute(holder, name):
    """Where it has no test of its own. Modules and optimizers get theirs when they are made."""
    made = {nn.Module: lambda: nn.Linear(2, 2), torch.optim.Optimizer: lambda: torch.optim.SGD([torch.ones(1)]),
            torch_private.OpOverload: lambda: torch.ops.aten.add.Tensor}
    assert hasattr(made[holder]() if holder in made else holder, name)


def test_versions_and_bases():
    whole = torch.zeros(4)
    part = whole[:2]
    assert part._base is whole and whole._base is None
    version = whole._version
    part.add_(1)
    assert whole._version == part._version == version + 1


def test_the_dictionaries_of_a_module():
    module = nn.BatchNorm1d(2)
    assert [*module._parameters] == ["weight", "bias"] and "running_mean" in module._buffers and module._modules == {}


def test_uses_of_a_storage_are_counted():
    tensor = torch.zeros(2)
    counted = torch_private.storage_use_count(tensor.untyped_storage()._cdata)
    view = tensor[:1]
    assert torch_private.storage_use_count(tensor.untyped_storage()._cdata) == counted + 1
    assert view._use_count() >= 1


def test_a_storage_of_foreign_memory():
    import ctypes

    owner = ctypes.create_string_buffer(b"\1\2\3", 3)
    storage = torch_private.storage_from_pointer(ctypes.addressof(owner), torch.device("cpu"), 3)
    assert torch.empty(0, dtype=torch.uint8).set_(storage).tolist() == [1, 2, 3]


def test_a_subclass_is_made_of_data():
    class Twin(nn.Parameter):
        pass

    twin = torch_private.make_subclass(Twin, torch.ones(2), True)
    assert type(twin) is Twin and twin.requires_grad and twin.tolist() == [1, 1]


def test_a_backward_is_known_and_ends_with_a_callback():
    tasks, executes, ended = [], [], []
    used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    nodes = [leaf.expand_as(leaf).grad_fn.next_functions[0][0] for leaf in (used, unused)]

    def look(_):
        tasks.append(torch_private.graph_task_id())
        executes.extend(torch_private.will_execute(node) for node in nodes)
        torch_private.execution_engine.queue_callback(lambda: ended.append(used.grad is not None))

    total = used.sum()
    total.register_hook(look)
    assert torch_private.graph_task_id() == -1
    total.backward()
    assert tasks[0] >= 0 and torch_private.graph_task_id() == -1
    assert executes == [True, False] and ended == [True]


def test_a_subclass_is_switched_off():
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    watched = torch.ones(2).as_subclass(Watched)
    with torch_private.DisableTorchFunctionSubclass():
        watched.add(1)
    assert seen == []
    watched.add(1)
    assert seen


def test_modes_are_seen_and_switched_off():
    calls = []

    class Mode(torch_private.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert isinstance(function, torch_private.OpOverload)
            calls.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        torch.ones(2)
        seen = len(calls)
        with torch_private.disable_current_modes():
            torch.ones(2)
    assert seen == len(calls) > 0


def test_fake_tensors():
    assert torch_private.active_fake_mode() is None
    with torch_private.FakeTensorMode() as mode:
        assert torch_private.active_fake_mode() is mode
        assert isinstance(torch.ones(2), torch_private.FakeTensor)
    assert not torch_private.is_traceable_wrapper_subclass(torch.ones(2))


def test_trees():
    nested = {"a": [torch.ones(1), (torch.ones(2), 3)]}
    assert len(torch_private.tree_leaves(nested)) == 3
    assert torch_private.tree_map(lambda leaf: 0, nested) == {"a": [0, (0, 0)]}


def test_extra_state_has_its_key():
    class Counting(nn.Module):
        def get_extra_state(self):
            return 7

        def set_extra_state(self, state):
            pass

    assert {torch_private.EXTRA_STATE_KEY: 7} == nn.Sequential(Counting())[0].state_dict()


def test_the_compiler_can_be_told_to_skip_code():
    def hook():
        pass

    assert torch_private.eval_frame._FrameAction.SKIP
    torch_private.let_compiler_skip(hook.__code__)


def test_hooks_of_optimizers_have_their_places():
    optimizer = torch.optim.SGD([torch.ones(1)])
    optimizer.register_step_pre_hook(lambda *_: None)
    assert len(optimizer._optimizer_step_pre_hooks) == 1 and len(optimizer._optimizer_step_post_hooks) == 0
    for when in ("pre", "post"):
        hooks = getattr(torch_private.optimizer_hooks, f"_global_optimizer_{when}_hooks")
        assert any(hooks is each for each in torch_private.global_step_hooks())
        handle = getattr(torch_private.optimizer_hooks, f"register_optimizer_step_{when}_hook")(lambda *_: None)
        assert handle.id in hooks
        handle.remove()
        assert handle.id not in hooks


@pytest.mark.parametrize("name", ["_get_total_norm", "_clip_grads_with_norm_"])
def test_clipping_calls_what_can_be_replaced(name, monkeypatch):
    """`clip_grad_norm_` looks both up when it is called, in its own module."""
    called, own = [], getattr(torch_private.clip_grad, name)
    monkeypatch.setattr(torch_private.clip_grad, name, lambda *args, **kwargs: called.append(name) or own(*args, **kwargs))
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    nn.utils.clip_grad_norm_([weight], 1.0)
    assert called == [name]


def test_fsdp2_has_collectives_that_can_be_counted():
    gathers, reduces = torch_private.fsdp_collectives()
    assert callable(gathers) and callable(reduces) and hasattr(gathers, "allocate")


def test_groups_and_their_stores():
    dist.init_process_group("fake", store=torch_private.fake_store(), rank=0, world_size=2)
    try:
        group = dist.group.WORLD
        assert group in torch_private.worlds.pg_map
        assert isinstance(torch_private.default_store(), dist.Store) and isinstance(torch_private.group_store(group), dist.Store)
        torch_private.set_group_timeout(timedelta(seconds=7))
    finally:
        dist.destroy_process_group()


def test_a_place_in_a_checkpoint():
    place = torch_private.stored_at("file", 8, 16)
    assert (place.relative_path, place.offset, place.length) == ("file", 8, 16)


def test_attention_on_the_cpu_is_dispatched_under_its_name():
    seen = set()

    class Mode(torch_private.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.add(function._overloadpacket)
            return function(*args, **(kwargs or {}))

    query = torch.ones(1, 1, 2, 2, requires_grad=True)
    with Mode():
        nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
    assert {torch_private.flash_attention, torch_private.flash_attention_backward} <= seen


@pytest.mark.gpu
def test_a_stream_can_be_kept_busy():
    torch_private.cuda_sleep(1000)
    torch.cuda.synchronize()
