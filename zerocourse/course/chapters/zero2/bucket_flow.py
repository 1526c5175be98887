"""Buckets in a recorded backward of stage 2: gradients arrive one by one, a bucket that is full leaves for the sum over
the ranks, and a slice of the sum comes back.
"""

from ....formulas.units import gb
from ...show.film import Film, Frame
from ...show.palette import INK
from ...show.pictures import svg
from ...show.pictures.placing import find, units
from ...show.pictures.recorded_stages import RecordedRank, recorded_stage

STAGE, RANK, SECONDS = 2, 0, 1.6
LABELS, WIDE, SLICE, LANE, ROW, TOP = 56, 330, 440, 20, 34, 26  # units: names, a bucket, where slices begin, heights


def buckets() -> Film:
    """The backward of rank 0, frame by frame."""
    rank = recorded_stage(STAGE)[RANK]
    most = max(sum(sizes["bucket"] for sizes in held.values()) for held in rank.held)
    whole = 4 * sum(buffer.elements for buffer in rank.buffers.values())
    title = "Buckets in a backward of ZeRO-2"
    words = (f"{title}, on rank {RANK}: the gradients of a block fill its bucket, from the last block to the first. A full one is "
             f"reduced while the next one fills, and then freed, so that at most {gb(most)} of buckets are held at once, "
             f"and not the {gb(whole)} of all gradients.")
    return Film(title, [Frame(frame(rank, index), sentence(rank, index)) for index in halves(rank)], words, SECONDS)


def halves(rank: RecordedRank) -> list[int]:
    """The events at which a frame is drawn: in each block when half of its gradients are there, and when it is left; and
    the end of the last reduction."""
    found = []
    for unit in units(rank):
        arrivals = [index for index, event in enumerate(rank.events)
                    if event["verb"] == "gradient" and unit_of(rank, event) == unit]
        found += [arrivals[len(arrivals) // 2], find(rank, "backward", unit)] if unit != "root" else []
    last = max(index for index, event in enumerate(rank.events) if event["verb"] == "reduce_scatter")
    return sorted({*found, last})


def unit_of(rank: RecordedRank, event: dict) -> str:
    return rank.buffers[event["unit"].partition("/")[0]].unit


def arrived(rank: RecordedRank, name: str, index: int) -> set[str]:
    """The parameters of a buffer whose gradients are there after event number `index`. A backward ends with the last of
    them, whose own event follows."""
    before, buffer = rank.events[: index + 1], rank.buffers[name]
    if any((event["verb"], event["unit"]) == ("backward", buffer.unit) for event in before):
        return set(buffer.params)
    return {event["unit"].partition("/")[2] for event in before
            if event["verb"] == "gradient" and event["unit"].startswith(f"{name}/")}


def frame(rank: RecordedRank, index: int) -> svg.Drawing:
    sizes, held = units(rank), rank.held[index]
    order = [unit for unit in sizes if unit != "root"][::-1] + ["root"]
    drawing = svg.Drawing(svg.WIDTH, TOP + ROW * len(order) + 26)
    drawing.text(LABELS, TOP - 8, "bucket: whole gradients of the unit", size=13)
    drawing.text(SLICE, TOP - 8, "slice of the sum, kept", size=13)
    scale = WIDE / max(sizes.values())
    for row, unit in enumerate(order):
        y, x, slices = TOP + ROW * row, float(LABELS), float(SLICE)
        drawing.text(4, y + 15, unit, size=14)
        for name, buffer in rank.buffers.items():
            if buffer.unit != unit:
                continue
            width, own = buffer.elements * scale, (buffer.own[1] - buffer.own[0]) * scale
            draw_bucket(drawing, rank, name, index, x, y, scale)
            drawing.rect(slices, y, own, LANE, "gradients" if held[name]["grad_shard"] else None,
                         stroke=INK if held[name]["grad_shard"] else "#b4b4b4",
                         data={"buffer": name, "slice": held[name]["grad_shard"]})
            if held[name]["received"]:
                drawing.arrow(LABELS + WIDE + 6, y + LANE / 2, SLICE - 6, y + LANE / 2)
            x, slices = x + width, slices + own
    drawing.legend(LABELS, TOP + ROW * len(order), ["gradients", "in flight"], {"in flight": "being added up over the ranks"})
    return drawing


def draw_bucket(drawing: svg.Drawing, rank: RecordedRank, name: str, index: int, x: float, y: float, scale: float) -> None:
    """Empty, filling with the gradients that have arrived, or under way as a whole."""
    buffer, held = rank.buffers[name], rank.held[index][name]
    leaving = bool(held["received"])
    drawing.rect(x, y, buffer.elements * scale, LANE, "in flight" if leaving else None, stroke=INK if held["bucket"] else "#b4b4b4",
                 dashed=not held["bucket"], data={"buffer": name, "bucket": held["bucket"]})
    there, at = arrived(rank, name, index) if held["bucket"] and not leaving else set(), x
    for key, elements in buffer.params.items():
        if key in there:
            drawing.rect(at, y, elements * scale, LANE, "gradients", stroke=INK if elements * scale > 2 else "none",
                         data={"parameter": key})
        at += elements * scale


def sentence(rank: RecordedRank, index: int) -> str:
    event, held = rank.events[index], rank.held[index]
    leaving = [buffer.unit for name, buffer in rank.buffers.items() if held[name]["received"]]
    if event["verb"] == "reduce_scatter":
        return "The backward is over: every bucket has been reduced and freed, and the slices of the sum are what is left."
    unit = unit_of(rank, event) if event["verb"] == "gradient" else event["unit"]
    said = (f"Half of the gradients of {unit} have come, and are copied into its bucket." if event["verb"] == "gradient"
            else f"All gradients of {unit} have come.")
    return said + (f" The bucket of {leaving[0]} is under way." if leaving else "")
