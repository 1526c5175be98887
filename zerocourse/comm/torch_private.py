"""The names that torch keeps to itself and the package needs: all of them, here and nowhere else.

torch may change them in any release, which is why pyproject.toml bounds it from above. A new torch is tried with
`tests/house/test_torch_private.py`, which has a test for each name. Attributes that begin with an underscore of objects that torch
hands out (a tensor's `_version`) are named in `ATTRIBUTES`, and are used where they are needed.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch._C import (
    DisableTorchFunctionSubclass,
    _construct_storage_from_data_pointer,
    _current_graph_task_id,
    _storage_Use_Count,
    _will_engine_execute_node,
)
from torch._C._dynamo import eval_frame
from torch._guards import active_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.optim import optimizer as optimizer_hooks  # `_global_optimizer_pre_hooks` and `_global_optimizer_post_hooks` are read in it
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

ATTRIBUTES = {  # by a public class of torch: what the package uses of its objects
    torch.Tensor: ("_backward_hooks", "_base", "_indices", "_use_count", "_values", "_version"),
    torch.UntypedStorage: ("_cdata", "_swap_data_ptr_"),
    torch.optim.Optimizer: ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks"),
    nn.Module: ("_buffers", "_forward_hooks", "_modules", "_parameters"),
    nn.RNNBase: ("_init_flat_weights",),
    dist.ProcessGroup: ("_get_backend", "_get_sequence_number_for_group"),
    OpOverload: ("_overloadpacket",),
}
EXTRA_STATE_KEY = _EXTRA_STATE_KEY_SUFFIX  # where a state dict has what a module's `get_extra_state` returns
graph_task_id = _current_graph_task_id  # () -> int: which backward this thread runs, -1 outside of any
will_execute = _will_engine_execute_node  # (node) -> bool: does the present backward come to this node?
execution_engine = torch.autograd.Variable._execution_engine  # .queue_callback(fn): when the present backward is over
make_subclass = torch.Tensor._make_subclass  # (class, data, requires_grad) -> a tensor of that class with this data
storage_from_pointer = _construct_storage_from_data_pointer  # (address, device, nbytes) -> a storage that owns no memory
storage_use_count = _storage_Use_Count  # (storage._cdata) -> int: tensors that share the storage
disable_current_modes = _disable_current_modes  # () -> a context without any dispatch mode
cuda_sleep = torch.cuda._sleep  # (ticks of the device's clock): keeps the stream busy
flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # as dispatched on the CPU, and its backward
flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
worlds = dist.distributed_c10d._world  # .pg_map: the process groups that are there
default_store = dist.distributed_c10d._get_default_store  # () -> the store over which the ranks met
group_store = dist.distributed_c10d._get_process_group_store  # (group) -> the group's own part of it
set_group_timeout = dist.distributed_c10d._set_pg_timeout  # (timedelta, group): for what is issued from now on
clip_grad = nn.utils.clip_grad  # `_get_total_norm` and `_clip_grads_with_norm_` are replaced in it


def global_step_hooks() -> list[dict]:
    """The hooks before and after each step of every optimizer in this process."""
    return [optimizer_hooks._global_optimizer_pre_hooks, optimizer_hooks._global_optimizer_post_hooks]


def let_compiler_skip(code) -> None:
    """torch.compile runs this code object, and whatever it calls, as it is."""
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))


def fsdp_collectives() -> tuple[type, type]:
    """FSDP2's own (all-gather, reduce-scatter). Imported when asked for: a second of processor time."""
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

    return DefaultAllGather, DefaultReduceScatter


def fake_store():
    """A store with which the backend "fake" runs one rank of many."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def stored_at(file: str, offset: int, nbytes: int):
    """Where a file of torch's distributed checkpoints has a tensor."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo(file, offset, nbytes)
