"""A step of a server: one forward of the pieces that the scheduler has chosen, and a token for each request whose last row is known."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..errors import BadInput
from ..models.evaluating import evaluating
from .block_pool import BlockPool
from .cache import PagedCache
from .models import served
from .scheduler import Request, RequestPiece, Scheduler


def likeliest(logits_V: Tensor) -> int:
    return int(logits_V.argmax())


class Server:
    """Generates for many requests at once, on the weights that `model` has at each step.

    blocks, block_size: of the cache, for blocks · block_size tokens in all.   budget: tokens of a forward, at most.
    share: requests with equal beginnings share their blocks.   keep: also with requests that are over; False: what was computed is forgotten
        when nothing is under way, so that weights may be changed then.
    choose(logits_V) -> the next token; the likeliest by default.   draft(tokens, most) -> guesses of the next tokens, which a step checks
        together (see `drafts`).   forwards, rows, guessed, right: of all steps; the last two are guesses.
    Raises BadInput for a model that is not known, and in `add` for what has no room.
    """

    def __init__(self, model: nn.Module, blocks: int, block_size: int = 16, budget: int = 256, share: bool = True, keep: bool = False,
                 choose: Callable[[Tensor], int] = likeliest, draft: Callable[[Sequence[int], int], list[int]] | None = None):
        self.model, self.choose, self.keep, self.served = model, choose, keep, served(model)
        self.pool = BlockPool(blocks, block_size)
        self.scheduler = Scheduler(self.pool, budget, share, draft)
        first = next(model.parameters())
        self.cache = PagedCache(self.served.layers, blocks, block_size, self.served.kv_heads, self.served.features, first.dtype, first.device)
        self.forwards = self.rows = self.guessed = self.right = 0

    def add(self, tokens: Sequence[int], most_new: int, stop: int | None = None) -> Request:
        """A request that begins with the next step. stop: a token that ends it."""
        if not len(tokens) or most_new < 1:
            raise BadInput(f"a request has {len(tokens)} tokens and asks for {most_new} more: it needs at least one of each")
        if len(tokens) + most_new - 1 > self.served.positions:
            raise BadInput(f"a prompt of {len(tokens)} tokens and {most_new} new ones are more than the model's {self.served.positions} positions"
                           f"{self.served.behind}")
        request = Request(list(tokens), most_new, stop)
        self.scheduler.add(request)
        return request

    def add_samples(self, tokens: Sequence[int], samples: int, most_new: int, stop: int | None = None) -> list[Request]:
        """So many requests with one prompt, for a `choose` that draws. The prompt is computed once, for the first; the others get their first
        token from its row and begin with its blocks, of which one is copied when somebody writes into it. With share=False each computes
        its own. What is raised: as in `add`."""
        if samples < 1:
            raise BadInput(f"samples is {samples}: it must be at least 1")
        first = self.add(tokens, most_new, stop)
        if not self.scheduler.share:
            return [first, *(self.add(tokens, most_new, stop) for _ in range(samples - 1))]
        first.samples = [Request(list(tokens), most_new, stop) for _ in range(samples - 1)]
        return [first, *first.samples]

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def step(self) -> list[tuple[Request, Tensor]]:
        """One forward. Returns the requests that got a token, with the logits (V,) from which it was chosen; one after the other those of a
        request whose guesses were right."""
        pieces = self.scheduler.plan()
        if not pieces:
            return []
        device = self.cache.keys.device
        tokens = torch.tensor([token for piece in pieces for token in piece.tokens], device=device)
        places = torch.tensor([place for piece in pieces for place in range(piece.start, piece.end)], device=device)
        self.cache.copy(self.scheduler.copies)
        self.cache.begin(pieces)
        with evaluating(self.model), self.served.attending(self.cache):
            logits_RV = self.served.logits(tokens[:, None], places[:, None])
        if len(self.cache.attended) != self.served.layers:
            raise BadInput(f"{len(self.cache.attended)} of the {self.served.layers} layers of {type(self.model).__name__} attend to the cache: the "
                           "others have an attention of their own, and would see one token each")
        self.forwards, self.rows, row, told = self.forwards + 1, self.rows + len(tokens), 0, []
        for piece in pieces:
            row += piece.end - piece.start
            if not self.scheduler.computed(piece):
                continue
            last = row - 1 - len(piece.draft)
            samples = [RequestPiece(sample, piece.start, piece.end) for sample in self.scheduler.begin_samples(piece.request)]
            for each in (piece, *samples):
                told += self.tokens_of(each, logits_RV[last : last + 1 + len(each.draft)])
                if each.request.done:
                    self.scheduler.finish(each.request)
        if not (self.busy or self.keep):
            self.pool.forget()
        return told

    def tokens_of(self, piece: RequestPiece, logits_RV: Tensor) -> list[tuple[Request, Tensor]]:
        """The tokens that a request gets: one, and one more behind each guess that was right.   logits_RV: of its last token and the guesses."""
        request, told = piece.request, []
        for guess, logits_V in zip((*piece.draft, None), logits_RV, strict=True):
            token = self.choose(logits_V)
            request.append(token)
            told.append((request, logits_V))
            self.right += token == guess
            if request.done or token != guess:
                break
        self.guessed += len(piece.draft)
        request.computed = len(request.tokens) - 1  # what was computed of right guesses is right
        return told

    def run(self) -> None:
        """Steps until nothing is left to do."""
        while self.busy:
            self.step()
