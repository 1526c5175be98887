"""A checkpoint that any mesh writes and any other reads: whole tensors by the names of the whole model.

    save_on_mesh(trainer, "checkpoints/step_100")       # pp 2 × dp 2 × tp 2
    load_on_mesh(trainer, "checkpoints/step_100")       # dp 3, or pp 4, or one process

Nothing in it says how the model was cut. For one unit after the other the slices are gathered over dp and the parts over
tp, and one rank of each pipeline stage writes whole tensors as safetensors: the master weights as `model/NAME`, the
optimizer's states as `exp_avg/NAME` and so on. Whoever reads takes its stages, of these its parts, and of those its slices.
Persistent buffers, such as BatchNorm's statistics, are `model/NAME` too. Replicas may differ in them: the first one's are kept.

The files are written into a folder beside the checkpoint's place, which is renamed when all ranks are done: a run that is
killed leaves the older one as it was. The index has the checksum of each file and one of its own, and whoever reads compares
them first.
"""

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm
from ..data.file_checksum import checksum_of
from ..errors import BadInput
from ..zero.buffers.buffer import FlatBuffer
from ..zero.whole.consolidate import load_state_dict, names
from .tensor.cuts import gathered
from .three_d import Parallel3D

INDEX, MODEL, PARTIAL = "index.json", "model", ".partial"


def save_on_mesh(trainer: Parallel3D, path: str | Path) -> None:
    """Write the weights and the optimizer's states. Collective. Raises BadInput, on all ranks, where one cannot write."""
    path, comms = Path(path), trainer.comms
    partial, world = path.with_name(path.name + PARTIAL), comms.make(*comms.mesh.axes)
    writes = not comms.along("dp").rank and not comms.along("tp").rank
    error, where, sums = "", {}, {}
    buffers = {f"{MODEL}/{name}": kept.detach().cpu().clone() for name, kept in named_buffers(trainer).items()}
    for tensors in chain(whole_tensors(trainer), [buffers]):
        if not writes or error or not tensors:
            continue
        try:
            partial.mkdir(parents=True, exist_ok=True)
            file = f"pp{comms.along('pp').rank}-{len(set(where.values()))}.safetensors"
            save_file(tensors, partial / file)
            sums[file] = checksum_of(partial / file)
            where |= dict.fromkeys(tensors, file)
        except OSError as reason:
            error = f"{comms.mesh.name(comms.rank)} cannot write to {partial}: {reason}"
    everything = world.all_gather_object([where, sums, error])
    errors = [said for *_, said in everything if said]
    if world.rank == 0 and not errors:
        files, sums = ({name: value for each in everything for name, value in each[which].items()} for which in (0, 1))
        index = {"steps": trainer.steps, "files": files, "crc32": sums}
        (partial / INDEX).write_text(json.dumps(index | {"own crc32": own_checksum(index)}, indent=1))
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)
    elif world.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
    world.all_gather_object(None)  # nobody reads before it is there
    if errors:
        raise BadInput(errors[0])


def load_on_mesh(trainer: Parallel3D, path: str | Path) -> None:
    """Set weights and optimizer states from a checkpoint of any mesh. Collective.

    Raises BadInput, on all ranks and before anything changes, where there is none, where it is damaged, or where it is one of
    another model.
    """
    path, index, said = Path(path), {}, ""
    try:
        index = read_index(path)
        check_files(trainer, index, path)
    except (OSError, BadInput) as error:
        said = str(error)
    for each in filter(None, trainer.replica.all_gather_object(said)):
        raise BadInput(each)
    files, tensor = index["files"], trainer.comms.along("tp")

    def read(kind: str, kept: Tensor) -> Tensor:
        """This rank's part of a whole tensor of this kind: of a parameter, or a buffer."""
        key, cut = f"{kind}/{name_of[kept]}", getattr(kept, "tensor_cut", None)
        with safe_open(path / files[key], "pt") as file:
            whole = file.get_tensor(key)
        return whole if cut is None or not whole.dim() else cut.take(whole, tensor.rank)

    check(trainer, files, path)
    name_of = {kept: name for name, kept in named_tensors(trainer).items()}
    for module, optimizer in stages(trainer):
        load_state_dict(module, {name: read(MODEL, kept) if isinstance(kept, Tensor) else kept
                                 for name, kept in names(module).items()})
        for flat in module.zero.flats:
            for part, shard in flat.shard_params.items():
                name = name_of[flat.params[part.name]]
                kinds = [key.partition("/")[0] for key in files if key.partition("/")[2] == name and not key.startswith(MODEL)]
                values = {kind: read(kind, flat.params[part.name]) for kind in kinds}
                optimizer.state[shard] = {kind: value if not value.dim() else value.reshape(-1)[part.start:part.stop].clone()
                                          for kind, value in values.items()}
    trainer.steps = index["steps"]


def own_checksum(index: dict) -> int:
    """Of what stands in the index."""
    return zlib.crc32(json.dumps(index).encode())


def read_index(path: Path) -> dict:
    """Raises BadInput, also for an index that is not as it was written."""
    if not (path / INDEX).is_file():
        raise BadInput(f"{path} has no {INDEX}: it is no checkpoint that save_on_mesh completed")
    try:
        index = json.loads((path / INDEX).read_text())
        is_whole = index.pop("own crc32") == own_checksum(index)
    except (ValueError, KeyError, AttributeError, TypeError):
        is_whole = False
    if not is_whole:
        raise BadInput(f"{path / INDEX} is damaged, or was not written by this version's save_on_mesh")
    return index


def check_files(trainer: Parallel3D, index: dict, path: Path) -> None:
    """Are the files from which this rank reads as they were written?"""
    own = named_tensors(trainer).keys()
    for file in sorted({file for key, file in index["files"].items() if key.partition("/")[2] in own}):
        if checksum_of(path / file) != index["crc32"][file]:
            raise BadInput(f"{path / file} is damaged, or mixed with another checkpoint: it has another checksum than what was written")


def check(trainer: Parallel3D, files: dict[str, str], path: Path) -> None:
    """Are there values for all of this model, and of the right sizes, and for nothing else?"""
    mine = {f"{MODEL}/{name}": kept for name, kept in named_tensors(trainer).items()}
    everyone = {name for names in trainer.replica.all_gather_object(list(mine)) for name in names}
    there = {name for name in files if name.startswith(MODEL)}
    wrong = [f"lacks {name}" for name in everyone - there] + [f"has {name}, which the model does not" for name in there - everyone]
    for name in mine.keys() & there:
        cut = getattr(mine[name], "tensor_cut", None)
        with safe_open(path / files[name], "pt") as file:
            shape = file.get_slice(name).get_shape()
        needed = list(mine[name].shape) if cut is None else cut.shape(mine[name])
        if shape != needed:
            wrong.append(f"has {name} as {shape}, and the model as {needed}")
    wrong = sum(trainer.replica.all_gather_object(sorted(wrong)), [])
    if wrong:
        raise BadInput(f"{path} is a checkpoint of another model: it {wrong[0].replace(f'{MODEL}/', '')}")


def stages(trainer: Parallel3D) -> Iterator[tuple[Any, Optimizer]]:
    """Sharded modules of this rank, and the optimizer of each."""
    return zip(trainer.pipeline.sharded_modules, trainer.optimizer.optimizers, strict=True)


def named_tensors(trainer: Parallel3D) -> dict[str, Tensor]:
    """This rank's parameters and persistent buffers, named as in `nn.Sequential(*layers)`."""
    return trainer.pipeline.named_parameters() | named_buffers(trainer)


def named_buffers(trainer: Parallel3D) -> dict[str, Tensor]:
    return {f"{number}.{name}": kept for stage in trainer.pipeline.stages.values()
            for number, layer in zip(stage.numbers, stage.layers, strict=True)
            for name, kept in names(layer).items() if isinstance(kept, Tensor) and not isinstance(kept, nn.Parameter)}


def whole_tensors(trainer: Parallel3D) -> Iterator[dict[str, Tensor]]:
    """Of each unit in turn the whole tensors, on the CPU, by what they are: model/NAME, exp_avg/NAME, ... Collective.

    The ranks of dp have the same buffers, those of tp have only the same units: where several have one part of a parameter
    (key-value heads), one of them counts it in a norm, and the others have it in another buffer. So tp gathers by name.
    """
    tensor, name_of = trainer.comms.along("tp"), trainer.pipeline.names
    for module, optimizer in stages(trainer):
        for unit in module.zero.units:
            parts, tensors = {}, {}
            for flat in unit.flats:
                for kind, values in by_kind(flat, optimizer, module.zero.comm, module.zero.shards_optimizer):
                    parts |= {f"{kind}/{name_of[flat.params[key]]}": (value, flat.params[key]) for key, value in values.items()}
            for key, (value, param) in sorted(parts.items()):
                cut = getattr(param, "tensor_cut", None)
                whole = value if cut is None or not value.dim() else gathered(value, cut, tensor, key)
                if not trainer.pipeline.ties.is_copy(param):
                    tensors[key] = whole.detach().cpu().clone()
            yield tensors


def by_kind(flat: FlatBuffer, optimizer: Optimizer, comm: Comm, is_cut: bool) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Of a buffer's parameters the master weights, and each state of the optimizer, whole among the ranks of dp."""
    states = {part: optimizer.state.get(shard, {}) for part, shard in flat.shard_params.items()}
    shapes = {kind: value.dim() for state in states.values() for kind, value in state.items() if isinstance(value, Tensor)}
    stepped = {part.name for part, state in states.items() if state}
    if is_cut:
        everyone = comm.all_gather_object([shapes, sorted(stepped)])
        shapes = {kind: dims for kinds, _ in everyone for kind, dims in kinds.items()}
        stepped = {name for _, names in everyone for name in names}
    yield MODEL, whole_of(flat, {part: flat.master_of(part) for part in states}, comm, is_cut, MODEL)
    for kind, dims in sorted(shapes.items()):
        values = {part: state[kind] for part, state in states.items() if kind in state}
        if dims:
            yield kind, {key: value for key, value in whole_of(flat, values, comm, is_cut, kind).items() if key in stepped}
        else:  # such as the number of steps, which a rank without a slice of the parameter does not have
            numbers = {part.name: value.item() for part, value in values.items()}
            for others in comm.all_gather_object(numbers) if is_cut else ():
                numbers |= others
            yield kind, {key: torch.tensor(number, dtype=torch.float32) for key, number in numbers.items()}


def whole_of(flat: FlatBuffer, slices: dict, comm: Comm, is_cut: bool, kind: str) -> dict[str, Tensor]:
    buffer = flat.master.new_zeros(flat.layout.padded)
    for part, value in slices.items():
        flat.shard_view_of(buffer[flat.own], part).copy_(value)
    if is_cut:
        comm.all_gather(buffer, flat.layout, f"{kind} of {flat.name}").wait()
    return {key: flat.view_of(buffer, key) for key in flat.params}
