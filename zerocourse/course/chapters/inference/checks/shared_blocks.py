"""The check of 23.2: find the bugs in a pool of blocks, some of which several sequences share."""

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

# What sequences do: "a+" takes a block, "b=a" takes all blocks that a has, too, "a-" gives all of its blocks back.
RUNS = {"alone": "a+ a+ a- b+ b+ b+", "shared": "a+ a+ b=a a- c+ b- d+ d+", "shared by three": "a+ b=a c=a a- d+ b- e+ c- f+",
        "full": "a+ a+ a+ a+ b+ a- b+", "both go on": "a+ b=a a+ b+ a- c+ c+ b-",
        "again and again": "a+ a+ a- b+ b+ b- c+ c- d+ d+ d+ d+ e+", "given twice": "a+ a- a- b+ c+ c+",
        "shared when it comes again": "a+ a+ a+ a+ a- b+ c=b b- d+ d+ d+ d+",
        "the last one comes back": "a+ a+ a+ b+ b- c+"}
BLOCKS = 4


def replayed_pool(answer, run):
    """How often a block was handed out that somebody had, whether each was, and how many are left."""
    pool, tables, twice, taken = answer(BLOCKS), {}, 0, []
    for event in RUNS[run].split():
        name = event[0]
        table = tables.setdefault(name, [])
        if event.endswith("+"):
            block = pool.take()
            if block is not None and (isinstance(block, bool) or not isinstance(block, int)):
                raise Wrong(f"take returned {a(block)}: return the number of a block, or None where none is free", MISUSED)
            twice += any(block in each for each in tables.values())
            taken.append(block is not None)
            if block is not None:
                table.append(block)
        elif event.endswith("-"):
            pool.give(list(table))
            table.clear()
        else:
            table.extend(tables[event[2]])
            pool.share(list(table))
    return {"twice": twice, "taken": taken, "free": free_blocks(pool)}


def free_blocks(pool):
    """How many more it hands out."""
    count = 0
    while pool.take() is not None and count <= 2 * BLOCKS:
        count += 1
    return count


@exercise(
    "23.2", "Find the bugs: whose block is it?", minutes=20, difficulty=2, answer="BlockPool",
    replaces=("zerocourse.inference.block_pool:BlockPool.*",), trials=[Trial([(run,) for run in RUNS], replayed_pool)],
    mistakes={
        "given while shared": {"counts": False},
        "never given": {"gives": False},
        "shared for ever": {"one_less": lambda owners: owners if owners > 1 else 0},
        "no end": {"endless": True},
    })
class Pool:
    """Blocks by number; each counts the sequences that have it."""

    def __init__(self, blocks, *, counts=True, gives=True, one_less=lambda owners: owners - 1, endless=False):
        self.free, self.owners = list(range(blocks)), [0] * 100
        self.counts, self.gives, self.one_less, self.endless, self.made = counts, gives, one_less, endless, blocks

    def take(self):
        if not self.free:
            self.made += 1
            return self.made - 1 if self.endless else None
        block = self.free.pop(0)
        self.owners[block] = 1
        return block

    def share(self, blocks):
        for block in blocks:
            self.owners[block] += 1

    def give(self, blocks):
        for block in blocks:
            self.owners[block] = self.one_less(self.owners[block]) if self.counts else 0
            if not self.owners[block] and self.gives:
                self.free.append(block)
