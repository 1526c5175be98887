"""From a model and its optimizer to a stage: checks that the ranks agree, fills the flat buffers, hands the optimizer its part.

It broadcasts rank 0's values once (start-up traffic, counted as metadata).
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from ..comm import Comm, bootstrap
from ..errors import BadInput
from ..init.deferred import Materializer, assert_materializable
from ..init.safetensors_folder import SafetensorsFolder
from ..layout.rankmap import RankMap, owners
from .buffers.buffer import SHARDED, FlatBuffer
from .buffers.dtypes import cast_statistics, sent_as_chosen
from .buffers.filling import fill_unit
from .buffers.groups import Groups
from .buffers.unit import cut_into_units
from .ddp import DataParallel, StageOps
from .extra import Extra
from .optimizer import take_over
from .options import Precision, Values, ZeroOptions, refuse_emulated_bf16, with_fields
from .same_model import check_same, describe
from .stage1 import Stage1
from .stage2 import Stage2
from .stage3 import Stage3
from .whole.expert_rows import check_experts
from .whole.weights import read_buffers, read_weights, readers_of

STAGES = (DataParallel, Stage1, Stage2, Stage3)


def shard(model: nn.Module, optimizer: Optimizer | None = None, stage: int = 3, rank_map: str | RankMap | None = None,
          units: Iterable[str | type] | None = None, *, options: ZeroOptions | None = None, precision: Precision | None = None,
          values: Values | None = None, offload=None, comm: Comm | Groups | ProcessGroup | None = None,
          ops: dict[str, Callable] | None = None, device: torch.device | str | None = None,
          extras: Iterable[type[Extra]] = (), **fields) -> tuple[nn.Module, Optimizer | None]:
    """Train `model` with ZeRO: afterwards plain `loss.backward(); optimizer.step()` does the rest. Collective.

    model: changed in place and returned; `model.zero` is its stage (see `zero.ddp.DataParallel`). Parameters on the
        meta device are materialised unit by unit, and a rank keeps its slices.
    optimizer: any whose update is element-wise; changed in place (its parameters become 1-D parts of this rank's
        slices; groups and hyper-parameters stay) and returned. `step` is collective, `zero_grad` is local. With a rank_map for
        whole tensors also one that looks at each tensor by itself, such as Adafactor, Muon or Lamb. None: a model that is frozen, too, is
        only asked, as a reference is, and has no master weights in half precision.
    stage: 0 (data parallel), 1, 2 or 3.
    rank_map: None or "flat" for equal slices; "round_robin", "contiguous", "greedy" or a function for whole tensors.
    units: names or classes of the modules that are gathered and freed as a whole; by default a ModuleList's entries.
    options, precision, values: how memory is traded for speed, what is computed in which dtype, and where the parameters' values
        come from.   fields: fields of these three, such as `bucket_size`, `prefetch`, `param_dtype`, `seed` or `weights`.
    offload: what keeps optimizer states, and perhaps parameters, in another memory: a `zerocourse.offload.HostOffload` or
        `DiskOffload`.
    comm: the ranks that cut each buffer among them; by default the default process group, or one rank when there is none. With
        `Groups.of(shard, replicate)` those of `replicate` hold the same slice (hybrid sharding); where experts are cut, what
        `parallel.experts.expert_groups` makes.
    ops: functions in place of the stage's own, by name (see `zero.ddp.StageOps`).
    device: where the model trains; by default where its parameters are (those on meta: `comm.bootstrap.device()`).
    extras: what unusual models and habits need beside the stage; `zerocourse.shard` has all of `zero.extras.EXTRAS`.

    Gradients live in the optimizer (`optimizer.param_groups[i]["params"][j].grad`), not in the model's parameters; clip
    with `model.zero.clip_grad_norm_`. Raises BadInput when ranks disagree on the model, and for settings that are not supported.
    """
    if type(stage) is not int or stage not in range(len(STAGES)):
        raise BadInput(f"stage is {stage!r}: it must be 0, 1, 2 or 3")
    if offload is not None:
        offload.check(stage, ops or {})
    groups = comm if isinstance(comm, Groups) else Groups.of(comm)
    has_whole = not stage or rank_map not in (None, "flat") or groups.shard.world_size == 1
    for extra in extras:
        extra.check(model, optimizer, has_whole)
    options, precision, values = with_fields([options or ZeroOptions(), precision or Precision(), values or Values()], fields)
    device = torch.device(device or next((param.device for param in model.parameters() if not param.is_meta), None) or bootstrap.device())
    if options.aligned is None:  # before the ranks compare their options
        options = replace(options, aligned=device.type == "cuda")
    stage_class = STAGES[stage]
    functions = with_functions(stage_class.ops, ops or {})
    shapes = {name: param.shape for name, param in model.named_parameters()}
    owner = owners(rank_map, shapes, groups.shard.world_size)
    check_experts(model, groups, owner, offload)
    made = cut_into_units(model, units, options.bucket_size)
    settings = [f"stage {stage}", str(options), str(precision), f"offload {offload}", *(f"the unit {unit}" for unit in made),
                *(f"{name} on rank {rank}" for name, rank in (owner or {}).items())]
    check_same(groups.all_gather_object, describe(model) + settings)
    trained_in = {precision.of(param) for param in model.parameters()}
    refuse_emulated_bf16(trained_in.union(*map(precision.of_gradients, trained_in)), device)
    folder = SafetensorsFolder(values.weights) if isinstance(values.weights, str | Path) else None
    readers = readers_of(model, folder) if folder is not None else values.weights or {}
    assert_materializable(model)
    materializer = Materializer(model, seed=values.seed, init_fn=values.init_fn, device=device)

    is_trained = optimizer is not None or any(param.requires_grad for param in model.parameters())
    with materializer.hiding():
        for unit in made:
            fill_unit(unit, stage_class, groups, owner, options, precision, materializer, readers.keys(),
                      FlatBuffer if offload is None else offload.buffer, is_trained)
    for module in model.modules():  # `model.to(device)` refuses a model with fake parameters
        module._buffers |= {name: buffer.to(device) for name, buffer in module._buffers.items() if buffer is not None}
    groups.broadcast_together([*model.buffers()], "the model's buffers")
    cast_statistics(model)
    flats = [flat for unit in made for flat in unit.flats]
    functions = sent_as_chosen(functions, flats)
    zero = model.zero = stage_class(model, made, groups, options, functions if offload is None else offload.ops(functions))
    for param in [*model.parameters(), *(part for flat in flats for part in flat.shard_params.values())]:
        setattr(param, SHARDED, weakref.ref(zero))
    zero.extras += [extra(zero) for extra in extras]
    if offload is not None:
        offload.attach(zero)
    model.zero_grad = zero.zero_grad
    if optimizer is not None:
        take_over(optimizer, zero)
    if readers:
        read_weights(zero, readers)
    if folder is not None:
        read_buffers(model, folder)
    return model, optimizer


def with_functions(ops: StageOps, given: dict[str, Callable]) -> StageOps:
    """The operations of a stage with some functions replaced. Raises BadInput for a name that it does not have."""
    for name in given:
        if name not in vars(ops):
            raise BadInput(f"ops has a function {name!r}, which no stage would call: there are {', '.join(vars(ops))}")
    return replace(ops, **given)
