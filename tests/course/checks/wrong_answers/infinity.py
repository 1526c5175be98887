"""Wrong answers of chapter 15."""

import torch
from torch import nn

from wrong_answers import wrong


@wrong("15.1", "the same for states")
def forgets_the_quarter(kind, tokens, peak, share):
    return share / (1 - share) * peak / tokens


@wrong("15.2", "gradients forgotten")
def counts_fourteen(params, ranks, device, host, disk):
    each = params / ranks
    if device >= 14 * each:
        return "device", "device"
    if device >= 2 * each and host >= 12 * each:
        return "host", "device"
    if host >= 14 * each:
        return "host", "host"
    if device >= 2 * each and disk >= 12 * each:
        return "disk", "device"
    return ("disk", "disk") if disk >= 14 * each else None


@wrong("15.3", "0 is the end")
def until_nothing_comes(file, offset, count):
    pieces = []
    while count > 0 and (piece := file.read_at(offset, count)):
        pieces.append(piece)
        offset, count = offset + len(piece), count - len(piece)
    return b"".join(pieces)


@wrong("15.4", "handed out before written")
def frees_after_the_update(buffers, reads, steps, writes):
    found, updated, kept = [], [], []
    read_until = write_until = 0
    for k in range(len(reads)):
        read = max(read_until, updated[k - buffers] if k >= buffers else 0)
        step = max(read + reads[k], updated[-1] if updated else 0)
        write = max(step + steps[k], write_until)
        read_until, write_until = read + reads[k], write + writes[k]
        updated.append(step + steps[k])
        found.append((read, step, write))
        kept.append((read, write_until))
    held = max((sum(a <= at < b for a, b in kept) for at, _ in kept), default=0)
    return {"begins": found, "seconds": write_until, "idle": write_until - sum(steps), "held": held}


@wrong("15.5", "errors alone")
def asks_for_errors(queue, blocks):
    for name in blocks:
        queue.submit(name, blocks[name])
    failed = [name for name, _, error in [queue.wait() for _ in blocks] if error]
    if failed:
        raise OSError("not written: " + " and ".join(f"block {name}" for name in failed))


@wrong("15.5", "assert")
def asserts_it(queue, blocks):
    for name, data in blocks.items():
        queue.submit(name, data)
    results = [queue.wait() for _ in blocks]
    bad = [f"block {name}" for name, moved, error in results if error or moved < len(blocks[name])]
    assert not bad, bad


@wrong("15.6", "bias in each")
def adds_the_bias_often(layer, in_splits, out_splits):
    rows = []
    biases = [None] * out_splits if layer.bias is None else layer.bias.detach().chunk(out_splits)
    for block, bias in zip(layer.weight.detach().chunk(out_splits), biases, strict=True):
        row = []
        for piece in block.chunk(in_splits, dim=1):
            tile = nn.Linear(piece.shape[1], piece.shape[0], bias=bias is not None)
            with torch.no_grad():
                tile.weight.copy_(piece)
                if bias is not None:
                    tile.bias.copy_(bias)
            row.append(tile)
        rows.append(row)
    return rows


@wrong("15.7", "any growth")
def last_against_first(run):
    if run.ledger()["optimizer"]:
        return "states on the device"
    process = run.process()
    if process[-1] > process[0]:
        return "leak"
    lanes = run.lanes()
    if abs(lanes["read"] + lanes["step"] + lanes["write"] - lanes["whole"]) < 0.05 * lanes["whole"]:
        return "in turn"
    return "slow host" if lanes["step"] > max(lanes["read"], lanes["write"]) else "slow disk"


@wrong("15.7", "too many")
def looks_first(run):
    ledger, process, lanes = run.ledger(), run.process(), run.lanes()
    steps = [b - a for a, b in zip(process, process[1:], strict=False)]
    total = sum(lanes.values()) - lanes["whole"]
    if ledger["optimizer"]:
        return "states on the device"
    if min(steps[1:]) > 0:
        return "leak"
    if 0.95 <= total / lanes["whole"] <= 1.05:
        return "in turn"
    return "slow host" if lanes["step"] >= max(lanes["read"], lanes["write"]) else "slow disk"


@wrong("15.7", "reads alone")
def disks_read(run):
    if run.ledger()["optimizer"]:
        return "states on the device"
    grown = run.process()[1:]
    if sorted(set(grown)) == grown:
        return "leak"
    lanes = run.lanes()
    if abs(sum(lanes.values()) / lanes["whole"] - 2) <= 0.05:
        return "in turn"
    return "slow disk" if lanes["read"] > max(lanes["step"], lanes["write"]) else "slow host"


@wrong("15.1", "whole tokens")
def quarter_of_the_tokens(kind, tokens, peak, share):
    return peak * share / (1 - share) / (tokens if kind == "parameters" else tokens // 4)


@wrong("15.5", "first alone")
def remembers_one(queue, blocks):
    for name, data in blocks.items():
        queue.submit(name, data)
    bad = ""
    for _ in blocks:
        name, moved, error = queue.wait()
        if (error or moved != len(blocks[name])) and name > bad:
            bad = name
    if bad:
        raise OSError(f"block {bad} is not written")


@wrong("15.3", "short is an error")
def ends_with_a_shorter_read(file, offset, count):
    data, last = b"", 0
    while len(data) < count:
        more = file.read_at(offset + len(data), count - len(data))
        if not more or len(more) < last and len(data) + len(more) < count:
            raise OSError("the end")
        last = len(more)
        data += more
    return data


@wrong("15.5", "in turn")
def waits_after_each(queue, blocks):
    bad = []
    for name, data in blocks.items():
        queue.submit(name, data)
        name, moved, error = queue.wait()
        if error or moved != len(data):
            bad.append(f"block {name}")
    if bad:
        raise OSError(", ".join(bad))


@wrong("15.7", "too wide")
def ten_percent(run):
    if run.ledger()["optimizer"]:
        return "states on the device"
    process = run.process()
    if all(b > a for a, b in zip(process[1:], process[2:], strict=False)):
        return "leak"
    lanes = run.lanes()
    busy = lanes["read"] + lanes["step"] + lanes["write"]
    if abs(busy - lanes["whole"]) <= 0.1 * lanes["whole"]:
        return "in turn"
    return "slow host" if lanes["step"] > max(lanes["read"], lanes["write"]) else "slow disk"


# 15.w1 --------------------------------------------------------------------------------------------------------------

def scheduled(buffers, reads, steps, writes, waits):
    """waits(block, found) -> when its read, update and write may begin at the earliest."""
    found = []
    for k in range(len(reads)):
        before = found[-1] if found else None
        lanes = (before[0] + reads[k - 1], before[1] + steps[k - 1], before[2] + writes[k - 1]) if before else (0, 0, 0)
        read = max(lanes[0], waits(k, found))
        step = max(lanes[1], read + reads[k])
        found.append((read, step, max(lanes[2], step + steps[k])))
    return found


@wrong("15.w1", "handed out before written")
def free_when_updated(buffers, reads, steps, writes):
    return scheduled(buffers, reads, steps, writes,
                     lambda k, found: found[k - buffers][1] + steps[k - buffers] if k >= buffers else 0)


@wrong("15.w1", "one buffer too many")
def waits_for_one_more(buffers, reads, steps, writes):
    return scheduled(buffers, reads, steps, writes,
                     lambda k, found: found[k - buffers - 1][2] + writes[k - buffers - 1] if k > buffers else 0)


@wrong("15.w1", "endless buffers")
def reads_at_will(buffers, reads, steps, writes):
    return scheduled(buffers, reads, steps, writes, lambda k, found: 0)


@wrong("15.w1", "one after the other")
def block_by_block(buffers, reads, steps, writes):
    return scheduled(buffers, reads, steps, writes, lambda k, found: found[-1][2] + writes[k - 1] if k else 0)
