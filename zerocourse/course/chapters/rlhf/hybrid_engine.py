"""Three ways to write with a policy that trains at stage 3, as DeepSpeed-Chat's Hybrid Engine has them, on real ranks.

    "each layer and token"   every forward gathers each unit and frees it           n · Ψ(N-1)/N elements for n tokens
    "once"                   all units are gathered, and kept while one writes      Ψ(N-1)/N, and Ψ parameters held
    "tensor parallel"        some blocks at a time are gathered, and each rank      Ψ(N-1)/N, and Ψ/t parameters held
                             keeps its part of them; t ranks write together
Source: `deepspeed/runtime/hybrid_engine.py` of DeepSpeed at edaa722 (`pin_parameters`, `inference_tp_size`, `tp_gather_partition_size`).
"""

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ....comm import Comm
from ....inference import Server
from ....models.gpt2 import GPT, GPTConfig
from ....parallel.tensor import tensor_parallel
from ....rl import Sampler, advantages, imitate, improve
from ....zero.extras import shard
from ....zero.whole.consolidate import gathered
from ....zero.whole.generation import generating
from .bracket_runs import GROUP, PROMPTS, ROOM, TASK

WAYS = EACH, ONCE, CUT = "each layer and token", "once", "tensor parallel"
TOGETHER, AT_ONCE, BLOCK = 2, 2, 4  # ranks that write together, blocks that are gathered at a time, tokens of a block of the cache


@dataclass(frozen=True)
class Written:
    """What a rank saw of one rollout.

    texts: of its own prompts.   params: of the model.   weights, activations: elements that it sent.   kept: parameters that it has in memory
    for the whole rollout, beside its slices.   whole: bytes of gathered parameters, at most.
    training, writing: events of the step before the rollout, and of the rollout.
    """

    texts: list[list[int]]
    params: int
    weights: int
    activations: int
    kept: int
    whole: int
    training: list[dict]
    writing: list[dict]


def new_policy() -> GPT:
    """With four blocks, so that some of them can be gathered at a time. It is sure of what it writes, so that texts can be compared."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(4, 4, 64, block_size=24, vocab_size=128, tied=False))
    model.lm_head.weight.data *= 20
    return model


def served_texts(model: GPT, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """The likeliest tokens behind each prompt. Collective where the model is sharded or cut."""
    server = Server(model, ROOM // BLOCK, BLOCK)
    requests = [server.add(prompt, tokens) for prompt in prompts]
    with torch.no_grad():
        server.run()
    return [request.tokens for request in requests]


@torch.no_grad()
def take_parts(generator: GPT, policy: GPT, at_once: int = AT_ONCE) -> None:
    """The generator's ranks take their parts of the policy's weights, which are whole for so many blocks at a time. Collective."""
    blocks, own = list(policy.h), dict(policy.named_parameters())
    others = set(own.values()) - {*params_of(blocks)}
    for wanted in (*({*params_of(blocks[first : first + at_once])} for first in range(0, len(blocks), at_once)), others):
        with gathered(*wanted):
            for name, part in generator.named_parameters():
                if own[name] in wanted:
                    cut = getattr(part, "tensor_cut", None)
                    part.copy_(own[name] if cut is None else cut.take(own[name], part.tensor_rank))


def params_of(modules: Iterable[nn.Module]) -> Iterator[nn.Parameter]:
    return (param for module in modules for param in module.parameters())


def written(way: str, tokens: int) -> Written:
    """A training step at stage 3, and after it a rollout of so many tokens for a prompt of this rank. Collective.

    The ranks of a tensor-parallel group write the prompts of all of them together, and each returns its own.
    """
    comm, policy = Comm(), new_policy()
    params = sum(param.numel() for param in policy.parameters())
    groups = [dist.new_group([*range(first, first + TOGETHER)]) for first in range(0, comm.world_size, TOGETHER)]
    together = Comm(groups[comm.rank // TOGETHER])
    generator = tensor_parallel(new_policy(), together) if way == CUT else None
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    shard(policy, optimizer, 3)
    zero, draw = policy.zero, torch.Generator().manual_seed(comm.rank)
    for _ in range(2):  # that of the first step orders the units
        imitate(policy, optimizer, TASK.taught(TASK.kinds(8, draw), 0.5, draw))
    training = zero.recorder.of_step(1)
    (prompt,) = TASK.prompts(TASK.kinds(1, draw))
    before, active = sum(zero.comm.elements.values()), sum(together.elements.values())
    if generator is not None:
        for name, module in (("root", generator), *((f"h.{number}", block) for number, block in enumerate(generator.h))):
            module.register_forward_hook(lambda *_, name=name: zero.recorder.record("forward", name, zero.recorder.clock()))
        take_parts(generator, policy)
        texts = served_texts(generator, together.all_gather_object(prompt), tokens)[together.rank :][:1]
    else:
        with generating(policy) if way == ONCE else nullcontext():
            texts = served_texts(policy, [prompt], tokens)
    writing = zero.recorder.of_step(2)
    kept = sum(part.numel() for part in generator.parameters()) if generator is not None else params * (way == ONCE)
    return Written(texts, params, sum(zero.comm.elements.values()) - before, sum(together.elements.values()) - active, kept,
                   max(event["kinds"]["in flight"] for event in writing) // 4, training, writing)


def seconds_of_steps(start: GPT, steps: int) -> tuple[float, float]:
    """Of processor time, in one process: for the rollouts of so many steps of GRPO, and for what is learned from them."""
    model, draw, writes, learns = copy.deepcopy(start), torch.Generator().manual_seed(1), 0.0, 0.0
    optimizer, sampler = torch.optim.AdamW(model.parameters(), lr=1e-3), Sampler(model, ROOM, draw)
    for _ in range(steps):
        began = time.process_time()
        rollout = sampler(TASK.prompts(TASK.kinds(PROMPTS, draw)), GROUP, TASK.depth)
        between = time.process_time()
        improve(model, optimizer, rollout, advantages(TASK.reward(rollout), GROUP))
        writes, learns = writes + between - began, learns + time.process_time() - between
    return writes, learns
