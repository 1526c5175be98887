"""Which tokens the next forward has: those that decode come first, then pieces of prompts, up to a budget of tokens.

So every forward has about as many rows, and nobody who waits for the next token waits for a whole prompt of somebody else. Where no block
is free, the request that came last gives its own back, and begins again later: what it has generated is kept, and computed
again with the prompt. Samples of one prompt begin when it is computed, with its blocks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import BadInput
from .block_pool import BlockPool


@dataclass(eq=False)
class Request:
    """tokens: the prompt, and what was generated after it.   most_new: tokens to generate.   stop: one that ends it; None: none does.

    table: blocks of the cache, in order.   computed: tokens whose keys and values are there.   done: has it ended?
    samples: other requests with its prompt, which begin when that is computed.
    """

    tokens: list[int]
    most_new: int
    stop: int | None = None
    table: list[int] = field(default_factory=list)
    computed: int = 0
    done: bool = False
    samples: list["Request"] = field(default_factory=list)

    def __post_init__(self):
        self.prompt = len(self.tokens)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt:]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.done = token == self.stop or len(self.tokens) == self.prompt + self.most_new


class RequestPiece(NamedTuple):
    """Tokens `start` to `end` of a request, which the next forward computes. The last of them may be a draft: guesses behind its tokens."""

    request: Request
    start: int
    end: int
    draft: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        return [*self.request.tokens, *self.draft][self.start : self.end]


class Scheduler:
    """budget: tokens of a forward, at most.   share: let requests share the blocks of equal beginnings.
    draft(tokens, most): guesses of the next tokens (see `drafts`); None: there are none.

    waiting, running: requests, in the order in which they came.   preempted: how often one had to give its blocks back.
    copies: (source, target) of the blocks that must be copied before the next forward writes.   copied: how many there were.
    """

    def __init__(self, pool: BlockPool, budget: int, share: bool = True, draft: Callable[[Sequence[int], int], list[int]] | None = None):
        if budget < 1:
            raise BadInput(f"budget is {budget}: a forward has at least 1 token")
        self.pool, self.budget, self.share, self.draft = pool, budget, share, draft
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.copies: list[tuple[int, int]] = []
        self.preempted = self.copied = 0

    def add(self, request: Request) -> None:
        """Raises BadInput for a request that the whole cache has no room for."""
        most = request.prompt + request.most_new - 1  # the last token is never computed
        if self.pool.needed(most) > len(self.pool.owners):
            raise BadInput(f"a prompt of {request.prompt} tokens and {request.most_new} new ones need {self.pool.needed(most)} blocks of "
                           f"{self.pool.size} tokens, and the cache has {len(self.pool.owners)}")
        self.waiting.append(request)

    def plan(self) -> list[RequestPiece]:
        """The pieces of the next forward, with blocks for them. Empty where there is nothing to do."""
        pieces, left = [], self.budget
        self.copies.clear()
        for request in list(self.running):
            if left and request in self.running:  # one before it may have taken its blocks
                guesses = self.guesses(request, left - 1)
                end = min(len(request.tokens), request.computed + left) + len(guesses)
                if self.has_room(request, end):
                    pieces.append(RequestPiece(request, request.computed, end, guesses))
                    left -= end - request.computed
        while self.waiting and left:
            request = self.waiting[0]
            if self.share:
                request.table = self.pool.shared(request.tokens)
                request.computed = len(request.table) * self.pool.size
            end = min(len(request.tokens), request.computed + left)
            if self.pool.needed(end) - len(request.table) > len(self.pool.free):
                self.forget(request)
                break
            self.running.append(self.waiting.popleft())
            self.has_room(request, end)
            pieces.append(RequestPiece(request, request.computed, end))
            left -= end - request.computed
        return pieces

    def guesses(self, request: Request, left: int) -> tuple[int, ...]:
        """For a request that decodes: no more than it may still generate behind the next token, and than blocks are free for. Nobody gives
        blocks back for a guess."""
        if self.draft is None or request.computed != len(request.tokens) - 1:
            return ()
        places = (len(request.table) + len(self.pool.free) - self.must_copy(request)) * self.pool.size - len(request.tokens)
        room = min(left, request.prompt + request.most_new - len(request.tokens) - 1, places)
        return tuple(self.draft(request.tokens, room)[:room]) if room > 0 else ()

    def has_room(self, request: Request, end: int) -> bool:
        """Take blocks for its tokens up to `end`, and a copy of a block that it must write into and does not have alone. False where the
        request itself is the one that must give up its own."""
        while (shared := self.must_copy(request)) or len(request.table) < self.pool.needed(end):
            if not self.pool.free:
                last = self.running.pop()
                self.forget(last)
                self.waiting.appendleft(last)
                self.preempted += 1
                if last is request:
                    return False
            elif shared:
                self.copies.append(self.pool.copy(request.table, request.computed // self.pool.size))
                self.copied += 1
            else:
                request.table.append(self.pool.take())
        return True

    def must_copy(self, request: Request) -> bool:
        """Do others have the block, too, that its next token is written into?"""
        number = request.computed // self.pool.size
        return number < len(request.table) and self.pool.owners[request.table[number]] > 1

    def forget(self, request: Request) -> None:
        self.pool.give(request.table)
        request.computed = 0

    def computed(self, piece: RequestPiece) -> bool:
        """The forward has run: its keys and values are there. Does a row say what the request's next token is? Guesses do not count yet."""
        request = piece.request
        request.computed = piece.end - len(piece.draft)
        if self.share:
            self.pool.publish(request.tokens, request.table, request.computed)
        return request.computed == len(request.tokens)

    def begin_samples(self, request: Request) -> list[Request]:
        """Its prompt has been computed: the other samples of it run from now on, with the blocks in which it lies. Returns them."""
        begun, request.samples = request.samples, []
        for sample in begun:
            sample.table = self.pool.share(request.table, request.computed)
            sample.computed = request.computed
        behind = self.running.index(request) + 1
        self.running[behind:behind] = begun
        return begun

    def finish(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.give(request.table)
