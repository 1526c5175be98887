"""The checks of chapter 07, ZeRO-3: here 7.1 to 7.3, which are functions of numbers and names."""

from ....checks import Trial, exercise

# 7.1 ----------------------------------------------------------------------------------------------------------------

def whole_model(units):
    return [sum(units)]


def rounded_at_the_end(units, ranks, micro_batches, reshard_after_forward):
    once = micro_batches * sum(units) * (ranks - 1) // ranks
    return {"all_gather": once * (1 + reshard_after_forward), "reduce_scatter": once}


@exercise(
    "7.1", "What a step of stage 3 sends", minutes=10, difficulty=1,
    cases=[([600, 1200, 1200, 600], ranks, micro_batches, again) for ranks in (2, 4, 1) for micro_batches in (1, 4)
           for again in (True, False)],
    trials=[Trial([([601, 7, 2], ranks, 3, again) for ranks in (2, 4) for again in (True, False)])],
    mistakes={
        "gathered once": {"gathers": lambda G, again: G},
        "gathered twice": {"gathers": lambda G, again: 2 * G},
        "turned round": {"gathers": lambda G, again: G * (2 - again)},
        "reduced once": {"reductions": lambda G: 1},
        "first gather alone": {"gathers": lambda G, again: 1 + again},
        "kept over micro-batches": {"gathers": lambda G, again: 2 * G if again else 1},
        "no micro-batches": {"gathers": lambda G, again: 1 + again, "reductions": lambda G: 1},
        "gathered after the step": {"gathers": lambda G, again: G * (1 + again) + 1},
        "all-reduce": {"reductions": lambda G: 2 * G},
        "to itself": ({"message": lambda n, ranks: ranks * -(-n // ranks)}, {"message": lambda n, ranks: n}),
        "sent once": ({"message": lambda n, ranks: -(-n // ranks)},
                      {"message": lambda n, ranks: -(-n // ranks) * (ranks > 1)}),
        "whole units": {"message": lambda n, ranks: n * (ranks - 1)},
        "bytes": {"each": 4},
        "exchanged": {"verbs": ("reduce_scatter", "all_gather")},
        "one cut": {"cut": whole_model},
        "rounded down": {"message": lambda n, ranks: (ranks - 1) * (n // ranks)},
        "no padding": (rounded_at_the_end, *(
            {"message": message, "cut": cut} for cut in (list, whole_model) for message in (
                lambda n, ranks: n * (ranks - 1) // ranks, lambda n, ranks: n * (ranks - 1) / ranks,
                lambda n, ranks: -(-n * (ranks - 1) // ranks)))),
    })
def elements_sent(units, ranks, micro_batches, reshard_after_forward, *, gathers=lambda G, again: G * (1 + again),
                  reductions=lambda G: G, message=lambda n, ranks: (ranks - 1) * -(-n // ranks), each=1, cut=list,
                  verbs=("all_gather", "reduce_scatter")):
    """message: elements of a unit that a rank sends in one collective.   gathers, reductions: how often in a step."""
    once = each * sum(message(n, ranks) for n in cut(units))
    times = gathers(micro_batches, reshard_after_forward), reductions(micro_batches)
    return {verb: once * count for verb, count in zip(verbs, times, strict=True)}


# 7.2 ----------------------------------------------------------------------------------------------------------------

def windows(blocks, wide):
    """What so many neighbours have together, wherever they begin; fewer near the end."""
    return [sum(blocks[i:i + wide]) for i in range(len(blocks))]


def full_windows(blocks, wide):
    return windows(blocks, wide)[:max(0, len(blocks) - wide + 1)]


def rooted(add):
    return {"add": add}


@exercise(
    "7.2", "Gathered at a time", minutes=15, difficulty=1,
    cases=[(root, blocks, prefetch, reshard) for root, blocks in (
        (50, [10, 20, 40, 80, 70]), (7, [300, 10, 10, 200]), (1000, [64]), (5, [9, 90, 9, 90, 60, 9]))
        for reshard in (True, False) for prefetch in (0, 1, 2, 8)],
    mistakes={
        "no root": (rooted(lambda root, here, again: here), rooted(lambda root, here, again: here + root * again)),
        "root or block": rooted(lambda root, here, again: max(root, here)),
        "root twice": (rooted(lambda root, here, again: here + 2 * root),
                       rooted(lambda root, here, again: here + root + root * again)),
        "without itself": {"wide": lambda prefetch: prefetch},
        "nothing ahead": {"wide": lambda prefetch: 1},
        "one too many": {"wide": lambda prefetch: prefetch + 2},
        "both sides": {"wide": lambda prefetch: 2 * prefetch + 1},
        "largest multiplied": {"most": lambda blocks, wide: max(blocks) * min(wide, len(blocks))},
        "fewer near the end": {"most": lambda blocks, wide: max(blocks) * wide},
        "largest anywhere": {"most": lambda blocks, wide: sum(sorted(blocks, reverse=True)[:wide])},
        "from the largest": {"most": lambda blocks, wide: sum(blocks[blocks.index(max(blocks)):][:wide])},
        "first blocks": {"most": lambda blocks, wide: sum(blocks[:wide])},
        "last blocks": {"most": lambda blocks, wide: sum(blocks[-wide:])},
        "average": tuple({"most": lambda blocks, wide, div=div: div(sum(blocks) * min(wide, len(blocks)), len(blocks))}
                         for div in (int.__floordiv__, int.__truediv__)),
        "full windows": ({"most": lambda blocks, wide: max(full_windows(blocks, wide))},
                         {"most": lambda blocks, wide: max(full_windows(blocks, wide), default=0)}),
        "always freed": {"kept": lambda again: False},
        "turned round": {"kept": lambda again: again},
    })
def most_gathered(root, blocks, prefetch, reshard_after_forward, *, wide=lambda prefetch: prefetch + 1,
                  most=lambda blocks, wide: max(windows(blocks, wide)), kept=lambda again: not again,
                  add=lambda root, here, again: root + here):
    """wide: how many neighbours are there.   most: elements of so many.   add: the root to those of the blocks."""
    here = sum(blocks) if kept(reshard_after_forward) else most(blocks, wide(prefetch))
    return add(root, here, reshard_after_forward)


# 7.3 ----------------------------------------------------------------------------------------------------------------

def first_other_event(case, got, want):
    if not isinstance(got, (list, tuple)) or list(got) == want:
        return None
    for number, (mine, wanted) in enumerate(zip(got, want, strict=False), start=1):
        if mine != wanted:
            return "other", {"number": number, "mine": mine, "wanted": wanted}
    return "length", {"events": len(got), "right": len(want), "same": min(len(got), len(want))}


def ahead(count):
    """Gather the present block and those after it: count(prefetch, direction) of them."""
    return {"wanted": lambda order, i, prefetch, direction: order[i:i + 1 + max(0, count(prefetch, direction))]}


def wanted(choose):
    return {"wanted": lambda order, i, prefetch, direction: choose(order, i, prefetch)}


def by_name(order, i, prefetch, direction):
    return sorted(order[i:i + 1 + prefetch], reverse=direction == "backward")


def looking_forward(order, i, prefetch, direction):
    """In the backward too, the blocks that come after the present one in the model."""
    return order[i:i + 1 + prefetch] if direction == "forward" else order[max(0, i - prefetch):i + 1][::-1]


def from_a_negative_start(order, i, prefetch, direction):
    """In the backward, the slice of the blocks in the order of the model."""
    at, blocks = len(order) - 1 - i, order[::-1]
    return order[i:i + 1 + prefetch] if direction == "forward" else blocks[at - prefetch:at + 1][::-1]


@exercise(
    "7.3", "The order of the verbs", minutes=25, difficulty=2,
    trials=[Trial([*((["h.0", "h.1", "h.2", "h.3"], prefetch) for prefetch in (0, 1, 2)), (["h.0"], 1),
                   (["h.0", "h.1"], 9), (["h.8", "h.9", "h.10", "h.11"], 2),
                   (["h.0", "h.1", "h.2"], 3)], words={"returned": first_other_event})],
    mistakes={
        "nothing ahead": ahead(lambda prefetch, direction: 0),
        "ahead in the forward": ahead(lambda prefetch, direction: prefetch * (direction == "forward")),
        "itself counted": ahead(lambda prefetch, direction: prefetch - 1),
        "too far": ahead(lambda prefetch, direction: prefetch + 1),
        "one ahead": ahead(lambda prefetch, direction: min(prefetch, 1)),
        "all at once": (ahead(lambda prefetch, direction: 99),
                        ahead(lambda prefetch, direction: 99 if direction == "forward" else prefetch)),
        "farthest alone": (wanted(lambda order, i, prefetch: order[i:i + 1] + order[i + prefetch:i + prefetch + 1]),
                           wanted(lambda order, i, prefetch: order[i + prefetch:i + prefetch + 1])),
        "farthest first": (wanted(lambda order, i, prefetch: order[i:i + 1 + prefetch][::-1]),
                           wanted(lambda order, i, prefetch: order[i:i + 1] + order[i + 1:i + 1 + prefetch][::-1]),
                           wanted(lambda order, i, prefetch: order[i + 1:i + 1 + prefetch] + order[i:i + 1])),
        "looks forward": {"wanted": looking_forward},
        "negative start": {"wanted": from_a_negative_start},
        "ahead too late": {"late": True},
        "gathered again": {"looks": False},
        "by name": {"wanted": by_name},
        "no second gather": {"second": False},
        "kept": {"frees": lambda i, blocks: False},
        "last one kept": {"frees": lambda i, blocks: i < len(blocks) - 1},
        "no reshard": {"frees": lambda i, blocks: False, "forgets": True},
        "backward forwards": {"turn": lambda blocks: blocks},
        "reduced last": {"ending": ("backward", "reshard", "reduce")},
        "reduced first": {"ending": ("reduce", "backward", "reshard")},
        "reduced at the end": {"ending": ("backward", "reshard"), "end": "reduce"},
        "never reduced": {"ending": ("backward", "reshard")},
        "kept at the end": {"ending": ("backward", "reduce")},
    })
def step_events(blocks, prefetch, *, wanted=lambda order, i, prefetch, direction: order[i:i + 1 + prefetch], late=False,
                looks=True, second=True, frees=lambda i, blocks: True, forgets=False, turn=lambda blocks: blocks[::-1],
                ending=("backward", "reduce", "reshard"), end=None):
    """wanted: the blocks to be gathered before one computes; late: those ahead, after it.   looks: is it there already?
    frees: is a block resharded in the forward? forgets: though it was not, the backward gathers it.   end: a verb for
    all blocks at the end."""
    events, there = [], set()

    def gather(names):
        for name in names:
            if name not in there or not looks:
                there.add(name)
                events.append(f"unshard {name}")

    for direction, order in (("forward", blocks), ("backward", turn(blocks))):
        for i, name in enumerate(order):
            names = wanted(order, i, prefetch, direction) if second or direction == "forward" else []
            now = 1 if late else len(names)
            first, *rest = ending if direction == "backward" else ("forward", "reshard")[:1 + frees(i, blocks)]
            gather(names[:now])
            events.append(f"{first} {name}")
            gather(names[now:])
            events += [f"{verb} {name}" for verb in rest]
            if "reshard" in rest or forgets:
                there.discard(name)
    return events + [f"{end} {name}" for name in turn(blocks) if end]
