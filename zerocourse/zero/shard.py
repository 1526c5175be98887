"""From a model and its optimizer to a stage: checks that the ranks agree, fills the flats, hands the optimizer its pieces.

It broadcasts rank 0's values once (start-up traffic, counted as control). Each unit's values are drawn, or moved,
straight into its row, before the next unit has any: so a deferred model under stage 3 never holds more than the rank's
slices, one unit, and the module of it that is being drawn.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import cache, wraps
from itertools import zip_longest
from types import MethodType

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..comm.group import Comm
from ..errors import BadInput
from ..init.deferred import Materializer, assert_materializable
from ..layout.rankmap import Layout, ShardRange, RankMap, owners
from ..formulas.units import integer
from .ddp import DataParallel, StageOps
from .buffer import FlatBuffer
from .stage1 import Stage1
from .stage2 import Stage2
from .stage3 import Stage3
from .unit import Unit, cut_into_rows, cut_into_units

STAGES = (DataParallel, Stage1, Stage2, Stage3)
NOT_ELEMENTWISE = {"lbfgs", "adafactor", "muon", "sparseadam", "shampoo", "soap", "lamb", "lars"}
SHARDED = "_zerocourse_sharded"  # the mark of a parameter that a stage has in its flats


def shard(model: nn.Module, optimizer: Optimizer | None = None, stage: int = 3, rank_map: str | RankMap | None = None,
          units: Iterable[str | type] | None = None, *, bucket_size: int | None = None,
          param_dtype: torch.dtype | None = None, prefetch: int = 1, in_flight: int = 1,
          reshard_after_forward: bool = True, init_fn: Callable[[nn.Module], None] | None = None, seed: int = 0,
          comm: Comm | None = None, ops: dict[str, Callable] | None = None,
          device: torch.device | str | None = None) -> tuple[nn.Module, Optimizer | None]:
    """Train `model` with ZeRO: afterwards plain `loss.backward(); optimizer.step()` does the rest. Collective.

    model: changed in place and returned; `model.zero` is its stage (see `zero.ddp.DataParallel`). Parameters on the
        meta device are materialised unit by unit, and a rank keeps its slices: by `init_fn(module)`, else the model's
        `_init_weights`, else `reset_parameters`, from `seed` and the parameter's name, so that any number of ranks
        begins alike.
    optimizer: any whose update is element-wise; changed in place (its parameters become 1-D pieces of this rank's
        slices; groups and hyper-parameters stay) and returned. `step` is collective, `zero_grad` is local.
    stage: 0 (data parallel), 1, 2 or 3.
    rank_map: None or "flat" for equal slices; "round_robin", "contiguous", "greedy" or a function for whole tensors.
    units: names or classes of the modules that are gathered and freed as a whole; by default a ModuleList's entries.
    bucket_size: the most elements reduced at once (a longer parameter goes alone); None: a unit at once.
    param_dtype: train fp32 parameters in bf16 or fp16; the optimizer then steps fp32 master weights.
    prefetch: units gathered ahead (stage 3).
    in_flight: units whose reductions may be under way at once. 0: the backward waits for each, so nothing overlaps;
        1: it goes on, and at stage 3 the next gather waits instead (least memory with overlap); more: nobody waits.
    reshard_after_forward: False keeps parameters from forward to backward (stage 3): 2Ψ sent instead of 3Ψ.
    comm: the ranks; by default the default process group, or one rank when there is none.
    ops: functions in place of the stage's own, by name (see `zero.ddp.StageOps`).
    device: where the model trains; by default where its parameters are (those on meta: the GPU with NCCL, else the CPU).

    Gradients live in the pieces (`optimizer.param_groups[i]["params"][j].grad`), not in the model's parameters; clip
    with `model.zero.clip_grad_norm_`. Raises BadInput when ranks disagree on the model, and for what cannot be.
    """
    if isinstance(stage, bool) or stage not in range(len(STAGES)):
        raise BadInput(f"stage is {stage!r}: it must be 0, 1, 2 or 3")
    check_trainable(model, optimizer)
    prefetch, in_flight = integer(prefetch, "prefetch", 0), integer(in_flight, "in_flight", 0)
    bucket_size = None if bucket_size is None else integer(bucket_size, "bucket_size, in elements,", 1)
    if param_dtype is not None and not (isinstance(param_dtype, torch.dtype) and param_dtype.is_floating_point):
        raise BadInput(f"param_dtype is {param_dtype!r}: it must be a dtype such as torch.bfloat16")
    comm, of_stage = comm or Comm(), STAGES[stage]
    functions = with_functions(of_stage.ops, ops or {})
    shapes = {name: param.shape for name, param in model.named_parameters()}
    if not shapes:
        raise BadInput(f"{type(model).__name__} has no parameters, so there is nothing to train")
    owner = owners(rank_map, shapes, comm.world_size)
    known_to(optimizer.param_groups if optimizer is not None else [], model)
    made = cut_into_units(model, units)
    settings = [f"stage {stage}", f"bucket_size {bucket_size}", f"param_dtype {param_dtype}", f"prefetch {prefetch}",
                f"in_flight {in_flight}", f"reshard_after_forward {reshard_after_forward}",
                *(f"the unit {unit}" for unit in made),
                *(f"{name} on rank {rank}" for name, rank in (owner or {}).items())]
    check_same(describe(model) + settings, comm)
    device = torch.device(device or next((param.device for param in model.parameters() if not param.is_meta), None)
                          or ("cuda" if "nccl" in comm.backends else "cpu"))
    assert_materializable(model)
    materializer = Materializer(model, seed=seed, init_fn=init_fn, device=device)

    for unit in made:
        fill_unit(unit, of_stage, comm, owner, bucket_size, param_dtype, materializer)
    model.to(device)  # the buffers: the parameters are there
    for name, buffer in model.named_buffers():
        comm.broadcast(buffer, f"buffer {name}")
    options = {"ops": functions, "in_flight": in_flight}
    if of_stage is Stage3:
        options |= {"prefetch": prefetch, "reshard_after_forward": reshard_after_forward}
    model.zero = of_stage(model, made, comm, **options)
    for param in model.parameters():
        setattr(param, SHARDED, True)
    watch_optimizers()
    model.zero_grad = model.zero.zero_grad
    for module in model.modules():
        module._apply = stays(module)
    model.__deepcopy__ = refuse("a sharded model cannot be copied, since a copy would be one on this rank alone", "state_dict")
    model.load_state_dict = refuse("load_state_dict() of a sharded model would not reach what the optimizer steps", "load_state_dict")
    if stage == 3:
        model.state_dict = refuse("state_dict() of a model under stage 3 would hold NaN, since this rank has slices", "state_dict")
    if optimizer is not None:
        take_over(optimizer, model.zero)
    return model, optimizer


def check_trainable(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Raise BadInput for what cannot be sharded, and when one of the two is not what it should be."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"model is {of_what(model)}: it must be a torch.nn.Module, and comes before the optimizer")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise BadInput(f"optimizer is {of_what(optimizer)}: it must be made already, such as "
                       "torch.optim.AdamW(model.parameters())")
    if isinstance(getattr(model, "zero", None), DataParallel):
        raise BadInput(f"this {type(model).__name__} is sharded already: shard a model once")
    if hasattr(model, "zero"):
        raise BadInput(f"this {type(model).__name__} has something of its own called `zero`, where shard() puts the stage: rename it")
    taken = next((name for name, param in model.named_parameters() if hasattr(param, SHARDED)), None)
    if taken is not None:
        raise BadInput(f"parameter {taken!r} is in another sharded model already: shard the model that holds all of it")
    if {base.__name__.lower() for base in type(optimizer).__mro__} & NOT_ELEMENTWISE:
        raise BadInput(f"{type(optimizer).__name__} looks at whole tensors, and a rank has only slices: "
                       "use an optimizer whose update is element-wise, such as AdamW or SGD")


def with_functions(ops: StageOps, given: dict[str, Callable]) -> StageOps:
    """The operations of a stage with some functions replaced. Raises BadInput for a name that it does not have."""
    names = [field.name for field in fields(ops)]
    for name in given:
        if name not in names:
            raise BadInput(f"ops has a function {name!r}, which no stage would call: there are {', '.join(names)}")
    return replace(ops, **given)


def of_what(thing: object) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"


def fill_unit(unit: Unit, of_stage: type[DataParallel], comm: Comm, owner: dict[str, int] | None,
              bucket_size: int | None, param_dtype: torch.dtype | None, materializer: Materializer) -> None:
    """Make the unit's flats, and free everything of it that this rank does not own."""
    rows = [row for run in unit.runs for row in cut_into_rows(run, bucket_size)]  # a run's gradients come together
    for index, row in enumerate(rows):
        name = unit.name if len(rows) == 1 else f"{unit.name}[{index}]"
        dtype = train_dtype(next(iter(row.values())), param_dtype)
        shapes = {key: param.shape for key, param in row.items()}
        layout = Layout.build(shapes, comm.world_size, owner and {key: owner[key] for key in shapes})
        unit.flats.append(FlatBuffer(name, row, layout, comm.rank, of_stage.shards_optimizer, of_stage.shards_parameters, dtype))
    places = {key: place for flat in unit.flats for key, place in flat.begin(materializer.device).items()}
    for key, value in materializer.stream(unit.params):  # straight into the row: no second copy of the unit
        materializer.install(key, places[key].copy_(value))
    for flat in unit.flats:
        flat.fill(lambda row, name=flat.name: comm.broadcast(row, name))
        if of_stage.shards_parameters:
            flat.hide()
            flat.storage.free()


def describe(model: nn.Module) -> list[str]:
    """Each parameter and buffer in words: what all ranks must agree on."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return [f"{name} {tuple(tensor.shape)} {tensor.dtype}{' trained' * tensor.requires_grad}" for name, tensor in tensors]


def train_dtype(param: nn.Parameter, param_dtype: torch.dtype | None) -> torch.dtype:
    """fp32 parameters train in `param_dtype` when one is asked for; others keep their own."""
    return param_dtype if param_dtype is not None and param.dtype is torch.float32 else param.dtype


def check_same(described: list[str], comm: Comm) -> None:
    """Raise BadInput, on every rank, that names the first thing in which a rank differs from rank 0."""
    of_ranks = comm.all_gather_object(described)
    for rank, other in enumerate(of_ranks):
        for here, there in zip_longest(of_ranks[0], other, fillvalue="nothing more"):
            if here != there:
                raise BadInput(f"the ranks disagree on the model: rank 0 has {here}, rank {rank} has {there}; "
                               "build the same model, and shard it in the same way, on every rank")


def refuse(why: str, instead: str) -> Callable:
    def call(*args, **kwargs):
        raise BadInput(f"{why}: call zerocourse.{instead} on every rank")

    return call


@cache
def watch_optimizers() -> None:
    """From now on, any optimizer that steps a sharded model's own parameters is refused: they get no gradients."""

    def look(optimizer: Optimizer, *_) -> None:
        if any(hasattr(param, SHARDED) for group in optimizer.param_groups for param in group["params"]):
            raise BadInput(f"this {type(optimizer).__name__} has parameters of a sharded model, which get no gradients: make it "
                           "first, and give it to shard(model, optimizer)")

    register_optimizer_step_pre_hook(look)


def stays(model: nn.Module) -> Callable:
    """In place of `model._apply`, through which .to(), .half() and their like go: parameters must stay views of their row."""
    own = model._apply

    def apply(change: Callable, *args, **kwargs):
        for tensor in (*model.parameters(), *model.buffers()):
            probe = torch.empty(1, dtype=tensor.dtype, device=tensor.device)
            if change(probe) is not probe:
                raise BadInput(f"a sharded {type(model).__name__} keeps its dtype and device: say param_dtype=... and device=... "
                               "to zerocourse.shard")
        return own(change, *args, **kwargs)

    return apply


def known_to(groups: list[dict], model: nn.Module, first: int = 0) -> None:
    """Raise BadInput when the optimizer's groups, numbered from `first`, hold what the model does not have."""
    params = set(model.parameters())
    for index, group in enumerate(groups, first):
        for param in group["params"]:
            if param not in params:
                raise BadInput(f"parameter group {index} of the optimizer holds a tensor {tuple(param.shape)} that is not "
                               "a parameter of the model: build the optimizer from model.parameters(), after the model has moved")


def take_over(optimizer: Optimizer, stage: DataParallel) -> None:
    """Give the optimizer this rank's pieces in place of the parameters, group by group, and route its calls."""
    pieces = {}
    for flat in stage.flats:
        for place in flat.shard_ranges:
            param, piece = flat.params[place.name], flat.shard_params[place.name]
            pieces[param] = piece
            if param in optimizer.state:  # of a checkpoint, or made by the constructor (Adagrad)
                optimizer.state[piece] = {key: cut(value, key, param, place, piece) for key, value in optimizer.state[param].items()}
    for param in stage.model.parameters():
        optimizer.state.pop(param, None)
    for group in optimizer.param_groups:
        if "param_names" in group:  # of an optimizer made from named_parameters()
            group["param_names"] = [name for name, param in zip(group["param_names"], group["params"], strict=True) if param in pieces]
        group["params"] = [pieces[param] for param in group["params"] if param in pieces]
    own_step, own_add = optimizer.step, optimizer.add_param_group

    @wraps(own_step)  # a scheduler made before leaves a mark there, and looks for it
    def step(optimizer: Optimizer, closure=None):
        if hasattr(optimizer, "found_inf"):
            raise BadInput("torch.amp.GradScaler looks for an overflow on each rank alone, and ranks would part: train in bf16 "
                           "(param_dtype=torch.bfloat16), which needs no scaling")
        return stage.step(own_step, closure)

    def add_param_group(group: dict) -> None:
        given = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        params = [each[1] if isinstance(each, tuple) else each for each in given]  # (name, parameter) or the parameter
        known_to([group | {"params": params}], stage.model, first=len(optimizer.param_groups))
        own_add(group | {"params": [(each[0], pieces[param]) if isinstance(each, tuple) else pieces[param]
                                    for each, param in zip(given, params, strict=True) if param in pieces]})

    optimizer._step_supports_amp_scaling = True  # so GradScaler calls `step` on every rank, and leaves its mark
    optimizer.step = MethodType(step, optimizer)  # a scheduler made later takes it for a method
    optimizer.add_param_group, optimizer.zero_grad = add_param_group, stage.zero_grad


def cut(value: object, key: str, param: torch.Tensor, place: ShardRange, piece: nn.Parameter) -> object:
    """This rank's part of an optimizer's state, when it has an element for each of the parameter's."""
    if not isinstance(value, torch.Tensor) or key == "step" or value.shape != param.shape:
        return value
    if value.is_meta:
        raise BadInput(f"the optimizer made its state {key!r} on the meta device, where it has no values: "
                       "make the model real (zerocourse.init.deferred.materialize_model) before this optimizer")
    return value.reshape(-1)[place.start : place.stop].to(piece, copy=True)
