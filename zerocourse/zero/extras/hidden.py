"""Parameters while stage 3 has freed them. Needed by: F.linear(x, other.weight), sum(p.square().sum() for p in parameters()).

A unit's parameters are there while the unit computes. Whoever uses one at another time gets it all the same if the model
is computing: the unit is gathered, and from then on stays gathered for as long as the root is, also in the backward. Outside
of the model's forward and backward nothing says that the other ranks come by as well, so there it is refused, with a sentence.

While it is hidden, a parameter has a class of its own, which sees every operation of torch that gets it. Shapes, dtypes and
devices can be asked for; values cannot.
"""

import functools
import weakref

import torch

from ...comm.torch_private import DisableTorchFunctionSubclass
from ...errors import BadInput
from ...measure.storages import set_data
from ..buffers.buffer import FlatBuffer
from ..extra import Extra
from ...memory.storage import FreeableStorage

NEEDS_NO_VALUES = {
    "shape", "size", "dim", "ndim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset", "dtype",
    "device", "layout", "is_contiguous", "is_meta", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_nested", "is_leaf",
    "is_complex", "is_floating_point", "is_inference", "is_signed", "is_mps", "is_xpu", "is_xla", "is_mkldnn", "is_sparse_csr",
    "requires_grad", "requires_grad_", "grad", "grad_fn", "retains_grad", "output_nr", "name", "names", "_version", "_base",
    "_backward_hooks", "_post_accumulate_grad_hooks", "register_hook", "register_post_accumulate_grad_hook", "untyped_storage",
    "data_ptr", "get_device", "nbytes", "itemsize", "__len__", "__hash__", "_has_symbolic_sizes_strides", "is_ipu", "is_vulkan",
    "is_maia", "is_mtia", "__format__", "is_distributed", "has_names", "is_neg", "is_conj"}


class HiddenParameter:
    """Comes before a parameter's own class while it is hidden. `_hidden_in`: what gathers it, or raises."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in ("__get__", "__set__", "__delete__"):
            name = getattr(getattr(function, "__self__", None), "__name__", name)
            if name in ("data", "T", "mT", "H", "mH", "real", "imag"):
                name = f".{name}"
        with DisableTorchFunctionSubclass():
            if name not in NEEDS_NO_VALUES:
                for param in _hidden_among([args, kwargs]):
                    param._hidden_in(name)
            return function(*args, **(kwargs or {}))

    def __repr__(self, **_) -> str:
        with DisableTorchFunctionSubclass():
            return f"a parameter {tuple(self.shape)} that is sharded, and gathered while its unit computes"


def _hidden_among(values):
    for value in values.values() if isinstance(values, dict) else values or ():
        if isinstance(value, HiddenParameter):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _hidden_among(value)


@functools.cache
def hidden_class(own: type) -> type:
    return type(own)(f"Hidden{own.__name__}", (HiddenParameter, own), {})


class Hiding(Extra):
    """Hides and shows the parameters of stage 3's buffers, and gathers those that are used while they are hidden."""

    def __init__(self, stage):
        self.stage = weakref.ref(stage)  # a parameter keeps neither its stage nor its buffer alive
        flats = stage.flats if stage.shards_parameters else []
        self.own = {param: type(param) for flat in flats for param in flat.params.values()}
        self.shown = {flat.dtype: torch.full((), float("nan") if flat.dtype.is_floating_point else 0, dtype=flat.dtype,
                                             device=flat.full.device) for flat in flats}
        self.empty = {param: self.shown[flat.dtype].expand(param.shape) for flat in flats for param in flat.params.values()}
        for storage in map(FreeableStorage, self.shown.values()):  # after their views are made: torch makes none without memory
            if storage.readable:
                storage.free()
        for flat in flats:
            for key, param in flat.params.items():
                param._hidden_in = functools.partial(use, weakref.ref(flat), key, weakref.ref(self))
            self.after_reshard(flat)

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """On a GPU the number that hidden parameters show has memory: 4 bytes that are no parameter."""
        return {"scalars": list(self.shown.values())}

    def after_reshard(self, flat: FlatBuffer) -> None:
        """Let the modules see the right shapes, and no memory. An empty buffer is always there."""
        for param in flat.params.values() if not flat.gathered else ():
            set_data(param, self.empty[param])
            param.__class__ = hidden_class(self.own[param])

    def after_unshard(self, flat: FlatBuffer) -> None:
        for param in flat.params.values():
            param.__class__ = self.own[param]
        flat.show_full()

    def gather_for_use(self, flat: FlatBuffer) -> bool:
        """A parameter is used while its unit does not compute. Returns whether it could be gathered."""
        stage = self.stage()
        if not (stage.root.forward_depth or stage.backward is not None):
            return False
        unit = stage.unit_of[flat]
        unit.stays_with_root = True
        stage.unshard_unit(unit)
        return True


def use(flat: weakref.ref, key: str, hiding: weakref.ref, operation: str) -> None:
    """Raises BadInput where the parameter cannot be gathered."""
    if hiding() is None or not hiding().gather_for_use(flat()):
        raise BadInput(f"parameter {key!r} is sharded at stage 3, and {operation.lstrip('.')!r} was asked of it outside of the "
                       "model's forward: gather it on every rank, in `with zerocourse.gathered(module):`; if its module is called by itself, name that "
                       "in units= (leaf_module of a config); for a checkpoint take zerocourse.state_dict(model)")
