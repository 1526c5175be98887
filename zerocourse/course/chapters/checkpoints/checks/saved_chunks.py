"""The checks of 12.3 and 12.5: which chunks hold a slice, and which samples come next at another number of ranks."""


from itertools import pairwise

from ....checks import Trial, exercise

# 12.3 ---------------------------------------------------------------------------------------------------------------

def chunks(*bounds, files=None):
    """Chunks of a tensor, cut at these places."""
    return [{"offset": first, "size": last - first, "file": (files or "abcdefgh")[number]}
            for number, (first, last) in enumerate(pairwise(bounds))]


TWO, FIVE = chunks(0, 50, 100), chunks(0, 7, 20, 21, 40, 64)


@exercise(
    "12.3", "Which chunks hold the slice?", minutes=20, difficulty=2,
    replaces=("zerocourse.course.chapters.checkpoints.resumes:transfers", "torch.distributed.checkpoint.planner_helpers:*"),
    trials=[Trial([(TWO, 60, 80), (TWO, 0, 50), (TWO, 50, 100)]), Trial([(TWO, 30, 70), (FIVE, 5, 45), (FIVE, 0, 64)]),
            Trial([(FIVE, 20, 21), (FIVE, 8, 8), (chunks(0, 4, 4, 9), 2, 9)]),
            Trial([([TWO[1], TWO[0]], 30, 70), ([TWO[1], TWO[0]], 0, 30)]), Trial([(chunks(0, 5, 10, files="ba"), 2, 9)])],
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
        "stops": {"ends": lambda offset, stop: offset >= stop},
        "one chunk": {"inside": lambda start, stop, offset, end: offset <= start < end},
        "to as saved": {"to": lambda first, start: first},
        "as they come": {"order": list},
        "by file": {"order": sorted},
    })
def pieces_of(saved, start, stop, *, first=max, last=min, at=lambda first, offset, start: first - offset,
              length=lambda first, last, at: last - first, to=lambda first, start: first - start,
              meets=lambda first, last: first < last, inside=lambda start, stop, offset, end: True,
              order=lambda found: sorted(found, key=lambda each: each[3]), ends=lambda offset, stop: False):
    """What to read for elements start to stop: (file, from, length, to)."""
    found = []
    for chunk in saved:
        offset, end = chunk["offset"], chunk["offset"] + chunk["size"]
        if ends(offset, stop):
            break
        begin, finish = first(start, offset), last(stop, end)
        if meets(begin, finish) and max(start, offset) <= min(stop, end) and inside(start, stop, offset, end):
            where = at(begin, offset, start)
            found.append((chunk["file"], where, length(begin, finish, where), to(begin, start)))
    return order(found)


# 12.5 ---------------------------------------------------------------------------------------------------------------

ORDER = [7, 2, 9, 4, 11, 0, 5, 8, 1, 10, 3, 6, 15, 12, 14, 13, 19, 17, 16, 18, 22, 21, 23, 20]


@exercise(
    "12.5", "Whose samples come next?", minutes=20, difficulty=2,
    replaces=("zerocourse.data.sampler:ShardSampler.__iter__", "zerocourse.data.tokens:TokenStream.indices"),
    trials=[Trial([(ORDER, 0, 6, rank, 2, 3) for rank in (0, 1)]),
            Trial([(ORDER, 4, 4, rank, 2, 1) for rank in (0, 1)]),
            Trial([(ORDER, 12, 12, rank, ranks, 2) for ranks in (1, 2, 3) for rank in range(ranks)])],
    mistakes={
        "from the start": {"begin": lambda seen, ranks, batch: 0},
        "own samples": {"begin": lambda seen, ranks, batch: seen * ranks},
        "per rank": {"begin": lambda seen, ranks, batch: seen // ranks},
        "steps": ({"begin": lambda seen, ranks, batch: seen * batch}, {"begin": lambda seen, ranks, batch: seen * batch % len(ORDER)}),
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
    """A rank's micro-batches of the next step."""
    first = begin(seen, ranks, batch)
    return cut(share(order[first:first + batch], rank, ranks), micro)


# 12.7 ---------------------------------------------------------------------------------------------------------------

def saved(*tensors, cuts):
    """A checkpoint of tensors (name, number of elements), cut at these shares, a file a slice: (index, files)."""
    index, files = {}, {f"old{number}": [] for number in range(len(cuts) + 1)}
    for number, (name, numel) in enumerate(tensors):
        bounds = [0, *(round(numel * cut) for cut in cuts), numel]
        index[name] = []
        for file, (first, last) in zip(files, pairwise(bounds)):
            if first < last:
                index[name].append({"offset": first, "size": last - first, "file": file, "at": len(files[file])})
                files[file] += [100 * number + element for element in range(first, last)]
    return index, files


ONE_TENSOR = saved(("w", 8), cuts=(0.5,))
TWO_TENSORS = saved(("w", 8), ("b", 4), cuts=(0.5,))
UNEVEN = saved(("w", 10), ("b", 3), ("g", 1), cuts=(0.3, 0.7))
FEW = saved(("w", 3), ("b", 1), cuts=(0.5,))  # on five ranks two own nothing
EMPTY = saved(("w", 4), ("e", 0), ("b", 2), cuts=(0.5,))
OTHER_FILES = ({"w": [{"offset": 0, "size": 2, "file": "b", "at": 0}, {"offset": 2, "size": 2, "file": "a", "at": 0}]},
               {"a": [7, 8], "b": [5, 6]})
BEHIND = ({"w": [{"offset": 0, "size": 2, "file": "a", "at": 1}], "b": [{"offset": 0, "size": 1, "file": "a", "at": 0}]}, {"a": [9, 1, 2]})
SHUFFLED = ({name: entry[::-1] for name, entry in UNEVEN[0].items()}, UNEVEN[1])


def put_in_order(values, places):
    """The tensor from its chunks."""
    whole = [None] * sum(len(part) for part in values)
    for part, place in zip(values, places, strict=True):
        whole[place:place + len(part)] = part
    return whole


def one_after_another(values, places):
    return [value for part in values for value in part]


@exercise(
    "12.7", "Cut a checkpoint anew", minutes=45, difficulty=3,
    trials=[Trial([(*ONE_TENSOR, 2), (*ONE_TENSOR, 4), (*ONE_TENSOR, 1)]), Trial([(*TWO_TENSORS, 2), (*TWO_TENSORS, 4)]),
            Trial([(*UNEVEN, 2), (*UNEVEN, 3), (*UNEVEN, 5)]), Trial([(*SHUFFLED, 2)]),
            Trial([(*FEW, 5)]), Trial([(*EMPTY, 2)]), Trial([(*OTHER_FILES, 2), (*BEHIND, 1)])],
    mistakes={
        "same files": {"name_of": lambda rank: f"old{rank}"},
        "rounded down": {"share": lambda numel, ranks: max(1, numel // ranks)},
        "begins of the file": {"read_at": lambda chunk: 0},
        "offset for at": {"read_at": lambda chunk: chunk["offset"]},
        "at in the tensor": {"new_at": lambda file, first: first},
        "each at 0": {"new_at": lambda file, first: 0},
        "empty slices": {"least": 0},
        "as they come": {"whole": one_after_another},
        "by file": {"order": lambda entry: sorted(entry, key=lambda chunk: (chunk["file"], chunk["at"])), "whole": one_after_another},
        "padded": {"pad": True},
        "file after file": {"by_rank": False},
        "files of holders": {"keep_file": bool},
        "empty tensor forgotten": {"keep_tensor": bool},
    })
def reshard(index, files, ranks, *, name_of="rank{}".format, share=lambda numel, ranks: -(-numel // ranks),
            read_at=lambda chunk: chunk["at"], new_at=lambda file, first: len(file), least=1, whole=put_in_order, pad=False,
            by_rank=True, order=list, keep_file=lambda numbers: True, keep_tensor=lambda found: True):
    """The index and the files of the same tensors on other ranks."""
    new_index, new_files = {}, {name_of(rank): [] for rank in range(ranks)}
    together = sum(sum(chunk["size"] for chunk in entry) for entry in index.values())
    passed = 0
    for name, chunks_of in index.items():
        entry = order(chunks_of)
        values = [files[chunk["file"]][read_at(chunk):read_at(chunk) + chunk["size"]] for chunk in entry]
        values = whole(values, [chunk["offset"] for chunk in entry])
        numel, new_index[name] = sum(chunk["size"] for chunk in entry), []
        size = share(numel if by_rank else together, ranks)
        for rank, file in enumerate(new_files.values()):
            first, last = rank * size, (rank + 1) * size
            if not by_rank:
                first, last = max(0, first - passed), max(0, last - passed)
            part = values[first:min(last, numel)]
            if len(part) >= least:
                new_index[name].append({"offset": min(first, numel), "size": len(part), "file": name_of(rank),
                                        "at": new_at(file, first)})
                file += part + [0] * (size - len(part)) * pad
        passed += numel
    return ({name: found for name, found in new_index.items() if keep_tensor(found)},
            {file: numbers for file, numbers in new_files.items() if keep_file(numbers)})
