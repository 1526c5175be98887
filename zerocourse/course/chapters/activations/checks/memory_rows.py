"""The check of 13.6: what the bytes of a step, block by block, say about it."""

from ....checks import Trial, exercise


def rows(kept, gradients, swell, again, start=0):
    """A step of blocks which keep so many bytes, and have so many bytes of gradients.

    swell: bytes that are there for a moment while a block computes.   again: those that come when it is computed again.
    """
    alive, found = start, []
    for block, each in enumerate(kept):
        found.append({"phase": "forward", "block": block, "before": alive, "highest": alive + each + swell,
                      "after": alive + each})
        alive += each
    for block in reversed(range(len(kept))):
        after = alive - kept[block] + gradients[block]
        found.append({"phase": "backward", "block": block, "before": alive,
                      "highest": alive + again + gradients[block] + swell, "after": after})
        alive = after
    return found


ALIKE = rows([100] * 4, [30] * 4, 10, 0)
FULL = rows([10] * 4, [30] * 4, 10, 150)
MIXED = rows([160, 160, 10, 10], [40, 40, 40, 40], 20, 150, start=7)
SHORT = rows([20] * 3, [300] * 3, 5, 40, start=11)
EARLY = [row | {"highest": 330} if (row["phase"], row["block"]) == ("forward", 1) else row for row in rows([50] * 3, [20] * 3, 5, 60)]
HIGHER = [dict(zip(("phase", "block", "before", "highest", "after"), row)) for row in (
    ("forward", 0, 0, 20, 10), ("forward", 1, 10, 300, 20), ("backward", 1, 20, 295, 40), ("backward", 0, 40, 60, 30))]
LAST_TOO = rows([50, 50, 50], [50, 50, 20], 10, 0)


def highest(table):
    return max(table, key=lambda row: row["highest"])


@exercise(
    "13.6", "Read the bytes of a step", minutes=20, difficulty=2,
    trials=[Trial([(ALIKE,), (FULL,)]), Trial([(MIXED,), (SHORT,), (LAST_TOO,), (EARLY,), (HIGHER,)])],
    mistakes={
        "what swells": {"kept": lambda row: row["highest"] - row["before"]},
        "all so far": {"kept": lambda row: row["after"]},
        "not freed": {"gradients": lambda row, kept: row["after"] - row["before"]},
        "freed twice": {"gradients": lambda row, kept: row["after"] - row["before"] + 2 * kept},
        "at the top": {"gradients": lambda row, kept: row["highest"] - row["before"]},
        "what stays": {"top": lambda table: max(table, key=lambda row: row["after"])},
        "backward alone": {"top": lambda table: highest([row for row in table if row["phase"] == "backward"])},
        "what is added": ({"top": lambda table: max(table, key=lambda row: row["highest"] - row["before"])},
                          {"top": lambda table: max(reversed(table), key=lambda row: row["highest"] - row["before"])},
                          {"top": lambda table: max(table, key=lambda row: (row["highest"] - row["before"], row["highest"]))}),
        "last of equals": {"top": lambda table: highest(table[::-1])},
        "peak's own block": {"until": lambda at: at + 1},
        "end of the forward": {"top": lambda table: [row for row in table if row["phase"] == "forward"][-1]},
        "from the first": {"order": lambda blocks: sorted(blocks)},
    })
def read_step(table, *, kept=lambda row: row["after"] - row["before"],
              gradients=lambda row, kept: row["after"] - row["before"] + kept, top=highest, order=list,
              until=lambda at: at):
    """"kept" and "gradients" by block, "peak" as (phase, block), and "done", the blocks whose gradients are there by then."""
    of_forward = {row["block"]: kept(row) for row in table if row["phase"] == "forward"}
    of_backward = {row["block"]: gradients(row, of_forward[row["block"]]) for row in table if row["phase"] == "backward"}
    at = top(table)
    before = table[:until(table.index(at))]
    return {"kept": of_forward, "gradients": of_backward, "peak": (at["phase"], at["block"]),
            "done": order([row["block"] for row in before if row["phase"] == "backward"])}
