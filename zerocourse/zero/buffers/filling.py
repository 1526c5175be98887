"""Filling a unit's flat buffers, so that no rank ever holds more than it must.

The unit's values are drawn, or moved, straight into its buffers, before the next unit has any: a deferred model under stage 3
never holds more than the rank's slices, one unit, and the module of it that is being drawn. Rank 0's values are broadcast.
"""

from collections.abc import Callable, Collection

from ...init.deferred import Materializer
from ...layout.rankmap import Layout
from ..options import Precision, ZeroOptions
from .buffer import FlatBuffer
from .groups import Groups
from .unit import Unit

ALIGNED_BYTES = 16  # the most that a thread of a GPU reads at once


def fill_unit(unit: Unit, stage_class, groups: Groups, owner: dict[str, int] | None,
              options: ZeroOptions, precision: Precision, materializer: Materializer, read: Collection[str] = (),
              make: Callable[..., FlatBuffer] = FlatBuffer, is_trained: bool = True) -> None:
    """Make the unit's flat buffers, and free everything of it that this rank does not own.

    read: parameters whose values are still to be read, each rank's slices by itself.   make: makes a buffer.   is_trained: see `FlatBuffer.make_full`.
    """
    for index, params in enumerate(unit.buffers):
        name = unit.name if len(unit.buffers) == 1 else f"{unit.name}[{index}]"
        shapes = {key: param.shape for key, param in params.items()}
        dtype = precision.of(next(iter(params.values())))
        narrowest = min(each.itemsize for each in (dtype, *precision.of_gradients(dtype)))
        own = groups.of_params(params.values())
        layout = Layout.build(shapes, own.shard.world_size, owner and {key: owner[key] for key in shapes},
                              multiple=max(1, ALIGNED_BYTES // narrowest) if options.aligned else 1)
        unit.flats.append(make(name, params, layout, dtype, stage_class, own, precision))
    places = {key: place for flat in unit.flats for key, place in flat.make_full(materializer.device, is_trained).items()}
    for key in [key for key in places if key in read]:
        materializer.install(key, places[key])
    for key, value in materializer.stream(unit.params):  # straight into the buffer: no second copy of the unit
        materializer.install(key, places[key].copy_(value))
    for flat in unit.flats:
        is_read = all(key in read for key in flat.params)
        flat.build(lambda values, flat=flat, is_read=is_read: None if is_read else flat.groups.broadcast(values, flat.name))
        if stage_class.shards_parameters:
            flat.storage.free()
