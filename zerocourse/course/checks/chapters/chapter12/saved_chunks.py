"""The checks of 12.3 and 12.5: which chunks hold a slice, and which samples come next at another number of ranks."""

from ...exercise import exercise
from ...trace import Trial

# 12.3 ---------------------------------------------------------------------------------------------------------------

def chunks(*bounds, files=None):
    """Chunks of a tensor, cut at these places."""
    return [{"offset": first, "size": last - first, "file": (files or range(99))[number]}
            for number, (first, last) in enumerate(zip(bounds, bounds[1:]))]


TWO, FIVE = chunks(0, 50, 100), chunks(0, 7, 20, 21, 40, 64)


@exercise(
    "12.3", "Which chunks hold the slice?", minutes=20, difficulty=2, answer="pieces_of",
    replaces=("zerocourse.course.resumes:transfers", "torch.distributed.checkpoint.planner_helpers:*"),
    trials=[Trial([(TWO, 60, 80), (TWO, 0, 50), (TWO, 50, 100)]), Trial([(TWO, 30, 70), (FIVE, 5, 45), (FIVE, 0, 64)]),
            Trial([(FIVE, 20, 21), (FIVE, 8, 8), (chunks(0, 4, 4, 9), 2, 9)]),
            Trial([([TWO[1], TWO[0]], 30, 70)])],
    mistakes={
        "whole chunks": {"first": lambda start, offset: offset, "last": lambda stop, end: end},
        "in the tensor": {"at": lambda first, offset, start: first},
        "in the slice": {"at": lambda first, offset, start: first - start},
        "last included": {"last": lambda stop, end: min(stop, end) - 1},
        "last for length": {"length": lambda first, last, at: last},
        "end for length": {"length": lambda first, last, at: at + last - first},
        "touching": {"meets": lambda first, last: first <= last},
        "begun inside": {"inside": lambda start, stop, offset, end: start <= offset < stop},
        "wholly inside": {"inside": lambda start, stop, offset, end: start <= offset and end <= stop},
        "one chunk": {"inside": lambda start, stop, offset, end: offset <= start < end},
        "to as saved": {"to": lambda first, start: first},
        "as they come": {"order": list},
    })
def pieces_of(saved, start, stop, *, first=max, last=min, at=lambda first, offset, start: first - offset,
              length=lambda first, last, at: last - first, to=lambda first, start: first - start,
              meets=lambda first, last: first < last, inside=lambda start, stop, offset, end: True,
              order=lambda found: sorted(found, key=lambda each: each[3])):
    """What to read for elements start to stop: (file, from, length, to).

    whole chunks: You read whole chunks: only the elements between `start` and `stop` are wanted.
    in the tensor: You counted where to read from the tensor's beginning: in the file the chunk's first element is
        number 0.
    in the slice: You counted where to read from the slice's beginning: in the file the chunk's first element is number
        0.
    last included: You left out the last element: `stop` is the first one that is not wanted.
    last for length: The third entry is how many elements, not where they end in the tensor.
    end for length: The third entry is how many elements, not where they end in the chunk.
    touching: You read pieces of 0 elements, of a chunk that only touches the slice or where nothing is wanted: leave
        them out.
    begun inside: You took only chunks that begin inside of the slice: one that begins before it may reach into it.
    wholly inside: You took only chunks that lie wholly inside of the slice: one that reaches into it counts too.
    one chunk: You took the chunk in which the slice begins, and no other: it may go on in the next ones.
    to as saved: You put the elements where they are in the tensor: the memory they are read into begins with element
        `start`.
    as they come: You took the chunks as they come: return them in the order of their elements.
    right: this is all of resharding; ranks and stages play no role in it.
    """
    found = []
    for chunk in saved:
        offset, end = chunk["offset"], chunk["offset"] + chunk["size"]
        begin, finish = first(start, offset), last(stop, end)
        if meets(begin, finish) and max(start, offset) <= min(stop, end) and inside(start, stop, offset, end):
            where = at(begin, offset, start)
            found.append((chunk["file"], where, length(begin, finish, where), to(begin, start)))
    return order(found)


# 12.5 ---------------------------------------------------------------------------------------------------------------

ORDER = [7, 2, 9, 4, 11, 0, 5, 8, 1, 10, 3, 6, 15, 12, 14, 13, 19, 17, 16, 18, 22, 21, 23, 20]


@exercise(
    "12.5", "Whose samples come next?", minutes=20, difficulty=2, answer="next_samples",
    replaces=("zerocourse.data.sampler:ShardSampler.__iter__", "zerocourse.data.tokens:TokenStream.indices"),
    trials=[Trial([(ORDER, 0, 6, rank, 2, 3) for rank in (0, 1)]),
            Trial([(ORDER, 6, 12, rank, 2, 3) for rank in (0, 1)]),
            Trial([(ORDER, 12, 12, rank, ranks, 2) for ranks in (1, 2, 3) for rank in range(ranks)])],
    mistakes={
        "from the start": {"begin": lambda seen, ranks, batch: 0},
        "own samples": {"begin": lambda seen, ranks, batch: seen * ranks},
        "per rank": {"begin": lambda seen, ranks, batch: seen // ranks},
        "steps": {"begin": lambda seen, ranks, batch: seen * batch},
        "dealt out": {"share": lambda step, rank, ranks: step[rank::ranks]},
        "all ranks": {"share": lambda step, rank, ranks: step},
        "one micro-batch": {"cut": lambda mine, micro: [mine[:micro]]},
        "no cut": {"cut": lambda mine, micro: [mine]},
        "as many as": {"cut": lambda mine, micro: [mine[i::micro] for i in range(micro)]},
        "grown batch": lambda order, seen, batch, rank, ranks, micro: next_samples(
            order, seen, batch // 2 * ranks, rank, ranks, micro),
        "positions": lambda order, *others: next_samples(list(range(len(order))), *others),
    })
def next_samples(order, seen, batch, rank, ranks, micro, *, begin=lambda seen, ranks, batch: seen,
                 share=lambda step, rank, ranks: step[rank * len(step) // ranks:(rank + 1) * len(step) // ranks],
                 cut=lambda mine, micro: [mine[at:at + micro] for at in range(0, len(mine), micro)]):
    """A rank's micro-batches of the next step.

    from the start: You began at the start of the order: `seen` samples have been read already.
    own samples: You multiplied `seen` by the ranks: it counts the samples of all ranks together, which is why it still
        means the same at another number of ranks.
    per rank: You divided `seen` by the ranks: it counts the samples of all ranks together, and so does the place in the
        order.
    steps: You took `seen` for a number of steps: it counts samples.
    dealt out: You dealt the samples out in turn: rank r takes the r-th run of the step, as one piece.
    all ranks: You gave every rank the whole step: they share it.
    one micro-batch: You returned one micro-batch only: a rank accumulates as many as its share of the step has.
    no cut: You did not cut the rank's share into micro-batches.
    as many as: You made `micro` micro-batches: `micro` is how many samples are in each.
    grown batch: You let the batch follow the number of ranks: it stays what it was, and the accumulation follows.
    positions: You returned places in the order: the samples that stand there are wanted.
    right: the step has the same samples on one rank, on two and on three, so no sample is lost or seen twice.
    """
    first = begin(seen, ranks, batch)
    return cut(share(order[first:first + batch], rank, ranks), micro)
