"""What a model has written: tokens, and the log-probability with which each was drawn.

The server of `inference` writes, on the weights that the trainer has at that moment, so nothing is copied. A prompt is computed once
for all of its samples, which share its blocks of the cache. A sharded model is gathered once for the whole rollout (`generating`),
Ψ(N-1)/N elements and not n times as many for n tokens.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import BadInput
from ..inference import Server
from ..zero.whole.generation import generating

BLOCK = 4  # tokens of a block of the cache: short, so that samples share as much of their prompt as there is


@dataclass(frozen=True)
class Rollout:
    """B samples, those of a prompt side by side. S is the longest, and a shorter one is padded with zeros at its end.

    tokens_BS: int64, prompts and what was written.   written_BT: bool, T = S - 1: is the token *behind* place t one that was written?
    drawn_BT: its log-probability when it was drawn, in fp32, and 0 elsewhere.   temperature: that of the draw; scores of the model
        must be divided by it, too.
    """

    tokens_BS: Tensor
    written_BT: Tensor
    drawn_BT: Tensor
    temperature: float = 1.0

    def answer(self, sample: int) -> list[int]:
        """The tokens that were written in one sample."""
        return self.tokens_BS[sample, 1:][self.written_BT[sample]].tolist()


class Sampler:
    """Writes on the weights that `model` has when it is called: ours, or a causal model of Hugging Face; sharded, or not.

    room: tokens that the cache holds, of all samples that are under way.   draw: a generator on the CPU.
    Raises BadInput for a temperature that is not positive, and for what the server refuses.
    """

    def __init__(self, model: nn.Module, room: int, draw: torch.Generator, temperature: float = 1.0):
        if not temperature > 0:
            raise BadInput(f"temperature is {temperature}: it must be positive; near 0 the likeliest token is drawn")
        self.model, self.draw, self.temperature = model, draw, temperature
        self.server = Server(model, max(1, room // BLOCK), BLOCK, budget=room, choose=self.choose)
        self.chosen: list[Tensor] = []  # log-probabilities, in one step of the server

    def choose(self, logits_V: Tensor) -> int:
        logp_V = (logits_V.float() / self.temperature).log_softmax(-1).cpu()
        token = int(torch.multinomial(logp_V.exp(), 1, generator=self.draw))
        self.chosen.append(logp_V[token])
        return token

    def __call__(self, prompts: Sequence[Sequence[int]], samples: int, most_new: int, stop: int | None = None) -> Rollout:
        """So many samples of each prompt. stop: a token that ends one, and is a part of what was written. Collective where the model
        is sharded: ranks may have different prompts."""
        requests = [request for prompt in prompts for request in self.server.add_samples(prompt, samples, most_new, stop)]
        logps: dict[int, list[Tensor]] = {id(request): [] for request in requests}
        with torch.no_grad(), generating(self.model) if hasattr(self.model, "zero") else nullcontext():
            while self.server.busy:
                self.chosen.clear()
                for (request, _), logp in zip(self.server.step(), self.chosen, strict=True):
                    logps[id(request)].append(logp)
        length = max(len(request.tokens) for request in requests)
        device = next(self.model.parameters()).device
        tokens = torch.zeros(len(requests), length, dtype=torch.int64)
        written, drawn = torch.zeros(len(requests), length - 1, dtype=torch.bool), torch.zeros(len(requests), length - 1)
        for row, request in enumerate(requests):
            new = logps[id(request)]
            places = slice(len(request.tokens) - len(new) - 1, len(request.tokens) - 1)
            tokens[row, : len(request.tokens)] = torch.tensor(request.tokens)
            written[row, places], drawn[row, places] = True, torch.stack(new)
        return Rollout(tokens.to(device), written.to(device), drawn.to(device), self.temperature)
