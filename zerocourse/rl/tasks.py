"""Two tasks whose answers a rule can check, small enough to be learned in seconds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadInput
from .rollouts import Rollout

OPEN, CLOSE = torch.tensor(list(b"([{<")), torch.tensor(list(b")]}>"))
PRIMES = torch.tensor([3, 5, 7, 11, 13])


@dataclass(frozen=True)
class Brackets:
    """Close them: "([{<(=" asks for ")>}])". One in five of the 1,024 prompts is held out, and never trained on."""

    depth: int = 5

    def kinds(self, count: int, draw: torch.Generator, held_out: bool = False) -> Tensor:
        """(count, depth): which brackets each prompt opens."""
        drawn = torch.randint(4, (8 * count + 400, self.depth), generator=draw)
        return drawn[((drawn * PRIMES[: self.depth]).sum(1) % 5 == 0) == held_out][:count]

    def prompts(self, kinds: Tensor) -> list[list[int]]:
        return torch.cat([OPEN[kinds], torch.full((len(kinds), 1), ord("="))], 1).tolist()

    def taught(self, kinds: Tensor, wrong: float, draw: torch.Generator) -> Rollout:
        """What a teacher has written, who closes a part `wrong` of them in the order in which they were opened."""
        said = torch.where(torch.rand(len(kinds), 1, generator=draw) < wrong, kinds, kinds.flip(1))
        tokens = torch.cat([torch.tensor(self.prompts(kinds)), CLOSE[said]], 1)
        written = torch.arange(tokens.shape[1] - 1).expand(len(kinds), -1) >= self.depth
        return Rollout(tokens, written, torch.zeros(written.shape))

    def reward(self, rollout: Rollout) -> Tensor:
        """(B,): 1 where all is closed right, else 0. Raises BadInput for answers of another length."""
        tokens = rollout.tokens_BS.cpu()
        wanted = CLOSE[(tokens[:, : self.depth, None] == OPEN).int().argmax(-1).flip(1)]
        answers = tokens[:, self.depth + 1 : 2 * self.depth + 1]
        if answers.shape != wanted.shape:
            raise BadInput(f"an answer has {answers.shape[1]} tokens, and {self.depth} brackets are to be closed: let the sampler write {self.depth}")
        return (answers == wanted).all(1).float().to(rollout.tokens_BS.device)


@dataclass(frozen=True)
class Vowels:
    """Write vowels. The share of them among what was written is the reward, and nobody asked for sense."""

    def reward(self, rollout: Rollout) -> Tensor:
        """(B,), 0 to 1."""
        is_vowel = torch.isin(rollout.tokens_BS[:, 1:], torch.tensor(list(b"aeiou"), device=rollout.tokens_BS.device))
        return (is_vowel & rollout.written_BT).sum(1) / rollout.written_BT.sum(1).clamp(min=1)
