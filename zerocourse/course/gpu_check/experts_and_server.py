"""Checks of a mixture of experts whose ranks share a GPU, and of a server that generates for many requests on one."""

import torch
from torch import nn

from ...comm import Comm, bootstrap
from ...inference import Server
from ...launch.ranks import Ranks
from ...models.gpt2 import GPT
from ...parallel.experts import MixtureOfExperts, expert_parallel
from .check_record import EXACT, Record
from .small_training import config

RANKS, EXPERTS, TOKENS = 2, 8, 64


def experts(record: Record) -> None:
    """Two ranks with half of the experts each: result and gradients are those of one process with both ranks' tokens."""
    width = 32 if record.tiny else 512
    whole = mixture_of_rank(width, None)
    with Ranks(RANKS, quiet=True, timeout=60) as ranks:
        parts = ranks.run(mixture_of_rank, width, Comm)
    record.within(EXACT, {
        "what comes out": largest(torch.cat([out for out, _ in parts]) - whole[0]) / largest(whole[0]),
        "gradients of experts": largest(torch.cat([gradient for _, gradient in parts]) * RANKS - whole[1]) / largest(whole[1])})


def largest(values: torch.Tensor) -> float:
    return values.abs().max().item()


def mixture_of_rank(width: int, make: type[Comm] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(result (tokens, width), gradient of the experts' first weights) on the CPU; all tokens and experts where `make` is None.
    An expert's gradient comes as that of a mean over the ranks, see `parallel.experts.token_exchange`."""
    torch.manual_seed(0)
    mixture: nn.Module = MixtureOfExperts(width, 2 * width, EXPERTS, 2)
    x = torch.randn(RANKS * TOKENS, width)
    if make is not None:
        bootstrap.init()
        comm = make()
        mixture, x = expert_parallel(mixture, comm), x.chunk(RANKS)[comm.rank]
    mixture, x = mixture.to(bootstrap.device()), x.to(bootstrap.device())
    out = mixture(x)
    out.square().sum().backward()
    return out.detach().cpu(), mixture.experts.up.grad.cpu()


def server(record: Record) -> None:
    """Eight requests together, in pieces and with too few blocks for all: each logit is that of the whole sequence without a cache."""
    device = bootstrap.device()
    shape = config(record.tiny)
    torch.manual_seed(0)
    model = GPT(shape).to(device)
    longest, new = shape.block_size // 2, 8
    serving = Server(model, blocks=3 * (longest + new) // 4, block_size=4, budget=48)
    prompts = [torch.randint(shape.vocab_size, (1 + number * (longest - 1) // 7,)).tolist() for number in range(8)]
    requests = [serving.add(prompt, new) for prompt in prompts]
    seen: dict[int, list[torch.Tensor]] = {}
    while serving.busy:
        for request, logits_V in serving.step():
            seen.setdefault(id(request), []).append(logits_V.clone())
    furthest = 0.0
    model.eval()
    with torch.no_grad():
        for prompt, request in zip(prompts, requests, strict=True):
            logits_TV = model(torch.tensor([request.tokens], device=device))[0]
            ours = torch.stack(seen[id(request)])
            furthest = max(furthest, largest(ours - logits_TV[len(prompt) - 1 : -1]))
    record.note(forwards=serving.forwards, rows=serving.rows, tokens=8 * new, blocks_left_taken=serving.pool.taken)
    record.within(EXACT, {"logits": furthest})
