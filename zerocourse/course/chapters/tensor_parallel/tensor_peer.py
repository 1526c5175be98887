"""torch's own tensor parallelism beside ours: how many collectives `parallelize_module` makes in a forward and a backward.

Attention has separate layers for q, k and v here: `ColwiseParallel` on a fused one would give rank 0 all of q and half
of k. There are no positions, since only the collectives are counted.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from ....models.gpt2 import GPT, GPTConfig

PLANS = ("q, k and v apart", "one input for q, k and v", "sequence parallelism")


class SplitAttention(nn.Module):
    """Attention with four layers. Each rank sees as many heads as its queries have."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.width = config.n_embd // config.n_head
        self.q, self.k, self.v, self.o = (nn.Linear(config.n_embd, config.n_embd) for _ in range(4))

    def forward(self, x_BTC: Tensor) -> Tensor:
        q, k, v = (layer(x_BTC).unflatten(2, (-1, self.width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class SplitGPT(GPT):
    """A GPT-2 with such attention, an untied head, and neither positions nor dropout."""

    def __init__(self, config: GPTConfig):
        super().__init__(replace(config, tied=False))
        self.wpe = None
        for block in self.h:
            block.attn = SplitAttention(config)
            del block.drop  # a block calls it twice, and CommDebugMode fails on a module that is called twice (torch 2.13)
            block.drop = lambda x_BTC: x_BTC

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.wte(tokens_BT)
        for block in self.h:
            x_BTC = block(x_BTC)
        return self.lm_head(self.ln_f(x_BTC))


def torchs_plan(layers: int, name: str) -> dict:
    """What becomes what, for `parallelize_module`. name: one of PLANS."""
    apart, _, sequence = (name == each for each in PLANS)
    between = Shard(1) if sequence else Replicate()  # dimension 1 are the tokens
    whole = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    plan = {"wte": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)}
    for number in range(layers):
        plan |= {f"h.{number}.attn.{layer}": ColwiseParallel() for layer in "qkv"}
        plan |= {f"h.{number}.attn.o": RowwiseParallel(output_layouts=between), f"h.{number}.mlp.c_fc": ColwiseParallel(),
                 f"h.{number}.mlp.c_proj": RowwiseParallel(output_layouts=between)}
        plan |= {} if apart else {f"h.{number}.attn": whole}
        plan |= {f"h.{number}.mlp": whole, f"h.{number}.ln_1": SequenceParallel(),
                 f"h.{number}.ln_2": SequenceParallel()} if sequence else {}
    return plan | ({"ln_f": SequenceParallel()} if sequence else {})


def torchs_collectives(config: GPTConfig, tokens: Tensor, targets: Tensor, name: str) -> tuple[float, dict[str, int]]:
    """The loss, and the collectives of a forward and a backward by kind, on every rank. Collective.

    tokens, targets: (B, T), the same on all ranks.   name: of the plan, one of PLANS.
    """
    model = SplitGPT(config)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    parallelize_module(model, mesh, torchs_plan(config.n_layer, name))
    with CommDebugMode() as counted, loss_parallel():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
    kinds = {"all_reduce": 0, "reduce_scatter": 0, "all_gather": 0}
    for operation, times in counted.get_comm_counts().items():
        kinds[next(kind for kind in kinds if str(operation).split(".")[-1].startswith(kind))] += times
    return loss.item(), kinds
