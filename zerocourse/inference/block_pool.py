"""Who has which block of the cache. A block has room for the keys and values of `size` tokens, and several sequences may share it.

Full blocks with the same tokens before them are shared: their keys and values are the same, and nobody writes into them again. Samples of one
prompt share its last block, too, which is not full: who has to write there takes a copy first, but for the last one that has it (copy on
write). A block that nobody has any more keeps its content until it is taken, so the beginning of a sequence that has ended is still found.
Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.4.
"""

from collections import deque
from collections.abc import Sequence

from ..errors import BadInput

Prefix = tuple[int, ...]  # all tokens up to the end of a block


class BlockPool:
    """blocks: how many there are.   size: tokens in a block.   owners: of each block, how many sequences have it. Raises BadInput."""

    def __init__(self, blocks: int, size: int):
        for name, value in (("blocks", blocks), ("block size", size)):
            if value < 1:
                raise BadInput(f"{name} is {value}: it must be at least 1")
        self.size, self.owners, self.free = size, [0] * blocks, deque(range(blocks))
        self.block_of: dict[Prefix, int] = {}
        self.prefix_of: dict[int, Prefix] = {}

    def needed(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(-tokens // self.size)

    @property
    def taken(self) -> int:
        """Blocks that somebody has."""
        return len(self.owners) - len(self.free)

    def take(self) -> int:
        """A block for one sequence. What was in it is forgotten. Raises IndexError where none is free."""
        block = self.free.popleft()
        self.block_of.pop(self.prefix_of.pop(block, ()), None)
        self.owners[block] = 1
        return block

    def give(self, table: list[int]) -> None:
        """A sequence gives all its blocks back; the last ones are taken again first, because a beginning is likelier to be asked for."""
        for block in reversed(table):
            self.owners[block] -= 1
            if not self.owners[block]:
                self.free.append(block)
        table.clear()

    def shared(self, tokens: Sequence[int]) -> list[int]:
        """Blocks that already hold the beginning of these tokens, which a sequence has from now on, too. At least one token is left:
        its row of the forward says what comes next."""
        table: list[int] = []
        for end in range(self.size, len(tokens), self.size):
            block = self.block_of.get(tuple(tokens[:end]))
            if block is None:
                break
            if not self.owners[block]:
                self.free.remove(block)
            self.owners[block] += 1
            table.append(block)
        return table

    def share(self, table: Sequence[int], tokens: int) -> list[int]:
        """The table of another sequence that has the blocks of so many tokens from now on, too."""
        shared = list(table[: self.needed(tokens)])
        for block in shared:
            self.owners[block] += 1
        return shared

    def copy(self, table: list[int], number: int) -> tuple[int, int]:
        """A sequence is to have its block `number` alone. Returns (source, target): what is in the first must be copied into the second.
        Raises IndexError where no block is free."""
        source, target = table[number], self.take()
        self.owners[source] -= 1
        table[number] = target
        return source, target

    def publish(self, tokens: Sequence[int], table: Sequence[int], computed: int) -> None:
        """Full blocks whose keys and values are written can be shared from now on."""
        for number in range(computed // self.size):
            prefix = tuple(tokens[: (number + 1) * self.size])
            if prefix not in self.block_of and table[number] not in self.prefix_of:
                self.block_of[prefix], self.prefix_of[table[number]] = table[number], prefix

    def forget(self) -> None:
        """Nothing that was computed is shared any more, as after a change of the weights."""
        self.block_of.clear()
        self.prefix_of.clear()
