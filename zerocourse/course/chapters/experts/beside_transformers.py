"""One step of one Mixtral by transformers' own expert parallelism and by ours: whole gradients, and what a rank sends.

Both cut all else as stage 3 does, transformers by torch's FSDP2. Ours counts itself in its ledger. What transformers sends is counted in
torch's dispatcher, where its collectives come by, also those of a backward.
"""

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor

from ....comm.torch_private import TorchDispatchMode
from ....layout.mesh import Mesh
from ....parallel.experts import expert_groups, expert_parallel
from ....parallel.mesh_comms import MeshComms
from ....zero.extras import shard
from ....zero.whole.expert_rows import joined
from ....zero.whole.one_parameter import safe_get_full_grad

ROWS, LENGTH = 8, 32  # samples of all ranks together, and the tokens of each


class Sent(TorchDispatchMode):
    """While it is on, `elements` counts what this rank sends to others: of "tokens", and of "all else". The small messages that say how
    many rows come are left out, as in our ledger.

    place: this rank's in its group of experts. An all-gather sends one's slice to each of the others, a reduce-scatter the others' slices.
    """

    def __init__(self, place: int):
        super().__init__()
        self.place, self.elements = place, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.partition(".")[0].strip("_")
        if name == "all_to_all_single":  # rows, how many come from each rank, how many go to each
            rows, _, going = args[:3]
            self.elements["tokens"] += (sum(going) - going[self.place]) * rows[0].numel()
        elif name in ("allgather_base", "reduce_scatter_base"):  # the result, and what was given
            self.elements["all else"] += abs(args[0].numel() - args[1].numel())
        return func(*args, **(kwargs or {}))


def step(model, rank: int, ranks: int) -> None:
    """Forward and backward of this rank's samples."""
    tokens = torch.randint(256, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1)).chunk(ranks)[rank]
    model(input_ids=tokens, labels=tokens).loss.backward()


def loaded(folder: str, **options):
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, **options)


def by_one_process(folder: str) -> dict[str, Tensor]:
    """Gradients by name, of a model that was saved in the folder."""
    model = loaded(folder)
    step(model, 0, 1)
    return {name: param.grad for name, param in model.named_parameters()}


def by_transformers(folder: str, group: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Whole gradients by name, and elements that this rank sent. group: ranks with different experts. Collective."""
    from transformers.distributed import DistributedConfig

    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = loaded(folder, distributed_config=DistributedConfig(fsdp_size=ranks, ep_size=group))
    with Sent(rank % group) as sent:
        step(model, rank, ranks)
    return {name: param.grad.full_tensor() for name, param in model.named_parameters()}, dict(sent.elements)


def by_ours(folder: str, group: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The same by `expert_parallel` and stage 3. Collective."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    comms = MeshComms(Mesh({"dp": ranks // group, "ep": group}))
    model = expert_parallel(loaded(folder), comms.along("ep"))
    shard(model, torch.optim.SGD(model.parameters()), 3, comm=expert_groups(comms))
    step(model, rank, ranks)
    sent = {"tokens": comms.along("ep").elements["send"], "all else": comms.elements["dp"] + comms.elements["dp+ep"]}
    return {name: joined(param, safe_get_full_grad(param), name) for name, param in model.named_parameters()}, sent
