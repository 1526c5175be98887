"""Wrong answers of chapter 12."""

import copy
import pickle

import torch

from wrong_answers import wrong


@wrong("12.1", "ranks")
def counts_sizes(rows):
    steps, sizes, saved = [], set(), [0]
    for row in rows:
        steps.append(row["step"])
        sizes.add(row["ranks"])
        if row["saved"]:
            saved.append(row["step"])
    return {"restarts": row["attempt"] - 1, "wasted": len(steps) - len(set(steps)), "safe": max(saved),
            "changes": len(sizes) - 1}


@wrong("12.2", "one machine")
def ignores_machines(save, mean, machines):
    return (2 * save * mean) ** 0.5


@wrong("12.3", "in the tensor")
def seeks_in_the_tensor(chunks, start, stop):
    read = []
    for chunk in sorted(chunks, key=lambda each: each["offset"]):
        wanted = [i for i in range(start, stop) if chunk["offset"] <= i < chunk["offset"] + chunk["size"]]
        if wanted:
            read.append((chunk["file"], wanted[0], len(wanted), wanted[0] - start))
    return read


@wrong("12.4", "no fsync")
def trusts_the_rename(disk, name, data):
    temporary = f"{name}.tmp"
    disk.write(temporary, data)
    disk.rename(temporary, name)
    disk.sync_folder()


@wrong("12.4", "in place")
def writes_over_it(disk, name, data):
    disk.write(name, data)
    disk.fsync(name)
    disk.sync_folder()


@wrong("12.4", "difference")
def synced_the_first_time(disk, name, data):
    found = f"{name}.tmp" in disk.files()
    disk.write(f"{name}.tmp", data)
    if not found:
        disk.fsync(f"{name}.tmp")
    disk.rename(f"{name}.tmp", name)
    disk.sync_folder()


@wrong("12.4", "raised")
def is_another_one_saving(disk, name, data):
    assert f"{name}.tmp" not in disk.files()
    synced_the_first_time(disk, name, data)


@wrong("12.4", "difference")
def sweeps_up_what_looks_like_a_draft(disk, name, data):
    for file in disk.files():
        if file.endswith(".draft"):
            disk.delete(file)
    disk.write(f"{name}.draft", data)
    disk.fsync(f"{name}.draft")
    disk.rename(f"{name}.draft", name)
    disk.sync_folder()


@wrong("12.5", "dealt out")
def deals(order, seen, batch, rank, ranks, micro):
    mine = [order[place] for place in range(seen + rank, seen + batch, ranks)]
    return [mine[i:i + micro] for i in range(0, len(mine), micro)]


@wrong("12.6", "optimizer shared")
def clones_the_model(model, optimizer, scheduler):
    return {"model": {name: value.clone() for name, value in model.state_dict().items()},
            "optimizer": optimizer.state_dict(), "scheduler": dict(scheduler.state_dict()),
            "random": torch.get_rng_state()}


@wrong("12.6", "rounded")
def half_the_memory(model, optimizer, scheduler):
    found = copy.deepcopy({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()})
    return found | {"model": {name: value.half() for name, value in model.state_dict().items()}, "random": torch.get_rng_state()}


@wrong("12.7", "difference")
def reads_on(index, files, ranks):
    files = {name: iter(numbers) for name, numbers in files.items()}
    read = {name: [next(files[chunk["file"]]) for chunk in sorted(chunks, key=lambda each: each["offset"]) for _ in range(chunk["size"])]
            for name, chunks in index.items()}
    whole = {name: [{"offset": 0, "size": len(values), "file": name, "at": 0}] for name, values in read.items()}
    new_index, new_files = {name: [] for name in index}, {f"rank{rank}": [] for rank in range(ranks)}
    for name, file, values, offset in resharded(whole, read, ranks):
        if values:
            new_index[name].append({"offset": offset, "size": len(values), "file": file, "at": len(new_files[file])})
            new_files[file] += values
    return new_index, new_files


@wrong("12.7", "each at 0")
def one_tensor_a_file(index, files, ranks):
    found, written = {}, {f"rank{rank}": [] for rank in range(ranks)}
    for name, entry in index.items():
        values = []
        for chunk in sorted(entry, key=lambda each: each["offset"]):
            values += files[chunk["file"]][chunk["at"]:][:chunk["size"]]
        size, found[name] = -(-len(values) // ranks), []
        for rank, file in enumerate(written):
            part = values[rank * size:][:size]
            if part:
                found[name].append({"offset": rank * size, "size": len(part), "file": file, "at": 0})
                written[file] += part
    return found, written


@wrong("12.3", "by file")
def sorts_the_tuples(chunks, start, stop):
    out = []
    for chunk in chunks:
        a, b = max(start, chunk["offset"]), min(stop, chunk["offset"] + chunk["size"])
        if a < b:
            out.append((chunk["file"], a - chunk["offset"], b - a, a - start))
    return sorted(out)


@wrong("12.6", "objects")
def copies_the_objects(model, optimizer, scheduler):
    return {"model": copy.deepcopy(model), "optimizer": copy.deepcopy(optimizer), "scheduler": copy.deepcopy(scheduler),
            "random": torch.get_rng_state()}


def resharded(index, files, ranks):
    """(tensor, rank, values, offset) of each slice, empty ones among them."""
    for name, chunks in index.items():
        whole = [value for chunk in sorted(chunks, key=lambda each: each["offset"])
                 for value in files[chunk["file"]][chunk["at"]:chunk["at"] + chunk["size"]]]
        size = -(-len(whole) // ranks)
        for rank in range(ranks):
            yield name, f"rank{rank}", whole[rank * size:(rank + 1) * size], rank * size


@wrong("12.7", "files of holders")
def makes_files_when_needed(index, files, ranks):
    new_index, new_files = {name: [] for name in index}, {}
    for name, file, values, offset in resharded(index, files, ranks):
        if values:
            held = new_files.setdefault(file, [])
            new_index[name].append({"offset": offset, "size": len(values), "file": file, "at": len(held)})
            held += values
    return new_index, new_files


@wrong("12.7", "empty tensor forgotten")
def makes_entries_when_needed(index, files, ranks):
    new_index, new_files = {}, {f"rank{rank}": [] for rank in range(ranks)}
    for name, file, values, offset in resharded(index, files, ranks):
        if values:
            held = new_files[file]
            new_index.setdefault(name, []).append({"offset": offset, "size": len(values), "file": file, "at": len(held)})
            held += values
    return new_index, new_files


# 12.w1 --------------------------------------------------------------------------------------------------------------

def all_but(*names):
    """The two functions as somebody else writes them, without some parts."""
    def write(training, file):
        parts = {name: getattr(training, name).state_dict() for name in ("optimizer", "scheduler", "stream") if name not in names}
        with open(file, "wb") as stream:
            pickle.dump((parts, [each.clone() for each in training.masters], torch.get_rng_state(), training.steps_done), stream)

    def read(training, file):
        with open(file, "rb") as stream:
            parts, masters, random, steps = pickle.load(stream)
        for name, state in parts.items():
            getattr(training, name).load_state_dict(state)
        torch.set_rng_state(random)
        if "steps" not in names:
            training.steps_done = steps
        if "masters" not in names:
            for number, each in enumerate(masters):
                training.masters[number].data[:] = each
        training.publish()

    return write, read


@wrong("12.w1", "no optimizer")
class WeightsAreEnough:
    save, resume = all_but("optimizer")


@wrong("12.w1", "no stream")
class TheTextBeginsAnew:
    save, resume = all_but("stream")


@wrong("12.w1", "no steps")
class NobodyCounts:
    save, resume = all_but("steps")


@wrong("12.w1", "list replaced")
class TheListIsReplaced:
    save = all_but()[0]

    def resume(training, file):
        with open(file, "rb") as stream:
            parts, training.masters, random, training.steps_done = pickle.load(stream)
        for name, state in parts.items():
            getattr(training, name).load_state_dict(state)
        training.publish()
        torch.set_rng_state(random)


# 12.w2 --------------------------------------------------------------------------------------------------------------

@wrong("12.w2", "index first")
def as_soon_as_rank_0_is_done(ranks):
    order = [("write", 0), ("sync", 0), ("index",)]
    for rank in range(1, ranks):
        order += [("write", rank), ("sync", rank)]
    return order + [("aside",), ("rename",), ("sync folder",), ("delete",)]


@wrong("12.w2", "not synced")
def the_folder_is_synced(ranks):
    return [*(("write", rank) for rank in range(ranks)), ("index",), ("sync folder",), ("aside",), ("rename",), ("sync folder",), ("delete",)]


@wrong("12.w2", "difference")
def nobody_steps_aside(ranks):
    order = [(what, rank) for rank in range(ranks) for what in ("write", "sync")]
    return order + [("index",), ("rename",), ("sync folder",)]


@wrong("12.w2", "left over")
def for_safety(ranks):
    return [*[(what, rank) for rank in range(ranks) for what in ("write", "sync")], ("index",), ("aside",), ("rename",), ("sync folder",)]
