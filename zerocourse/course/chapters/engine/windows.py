"""What the engine does at each micro-batch: the gradients that are held, what is sent, and where the update is."""

from collections.abc import Mapping, Sequence

from ....errors import BadInput
from ....formulas.units import gb
from ...show.film import Film, Frame
from ...show.palette import FAINT, INK
from ...show.pictures import svg

LEFT, HELD, SENT, UPDATE = 96, 44, 56, 26  # units: the names of rows; heights of the three rows
SECONDS = 1.6
KINDS = {"reduce_scatter": "gradients", "all_gather": "parameters"}


def windows(loops: Mapping[str, Sequence[dict]]) -> Film:
    """One panel for each loop, below each other on shared scales, filled micro-batch by micro-batch.

    loops: name → the records of `loop_trace.trace_loop`.   Raises BadInput for loops of different lengths.
    """
    lengths = {len(records) for records in loops.values()}
    if len(lengths) != 1 or not min(lengths):
        raise BadInput(f"the loops have {sorted(lengths)} micro-batches: all must have as many, and at least one")
    (length,) = lengths
    words = f"{length} micro-batches one after the other. " + " ".join(
        f"{name}: {described(records)}." for name, records in loops.items())
    frames = [Frame(frame(loops, number), caption(loops, number), f"Micro-batch {number}") for number in range(1, length + 1)]
    return Film("What the engine does at each micro-batch", frames, words, SECONDS, keys=[length - 1])


def frame(loops: Mapping[str, Sequence[dict]], until: int) -> svg.Drawing:
    """The loops up to micro-batch `until`, counted from 1; what is to come is empty."""
    most_held = max(record["gradients_bytes"] for records in loops.values() for record in records) or 1
    most_sent = max(sent_in(record) for records in loops.values() for record in records) or 1
    wide = (svg.WIDTH - LEFT) / max(map(len, loops.values()))
    panel = 34 + HELD + 16 + SENT + 24 + UPDATE + 26
    drawing = svg.Drawing(svg.WIDTH, panel * len(loops) + 34)
    for index, (name, records) in enumerate(loops.items()):
        of_loop = svg.Drawing(svg.WIDTH, panel)
        one_loop(of_loop, name, records[:until], wide, most_held, most_sent)
        drawing.put(of_loop, 0, panel * index)
    drawing.legend(0, panel * len(loops) + 4, ("gradients", "parameters", "optimizer"), {"optimizer": "update"})
    return drawing


def caption(loops: Mapping[str, Sequence[dict]], number: int) -> str:
    """What each loop holds and sends at one micro-batch, and which of them update."""
    now = {name: records[number - 1] for name, records in loops.items()}
    said = [f"{name} sends {gb(sent_in(record)) if sent_in(record) else 'nothing'}" for name, record in now.items()]
    updates = [name for name, record in now.items() if record["update"]]
    return f"{', '.join(said)}. " + (f"The update comes now: {', '.join(updates)}." if updates else "There is no update yet.")


def sent_in(record: dict) -> int:
    """Bytes of gradients and parameters; the few of the norm are left out."""
    return sum(record["sent"].get(verb, 0) for verb in KINDS)


def one_loop(frame: svg.Drawing, name: str, records: Sequence[dict], wide: float, most_held: int, most_sent: int) -> None:
    """The rows of a loop, from the top down: gradients held, bytes sent, updates."""
    held, sent = 34 + HELD, 34 + HELD + 16 + SENT
    update = sent + 24
    frame.text(0, 18, name, bold=True)
    for words, y in (("holds", held - HELD / 2 + 5), ("sends", sent - SENT / 2 + 5), ("update", update + UPDATE / 2 + 5)):
        frame.text(0, y, words, color=FAINT)
    for number, record in enumerate(records):
        x = LEFT + number * wide
        frame.text(x + wide / 2, 18, str(number + 1), anchor="middle", color=FAINT)
        data = {"micro": number + 1, "held": record["gradients_bytes"], "sent": sent_in(record),
                "update": record["update"] or 0}
        with frame.group(data):
            high = HELD * record["gradients_bytes"] / most_held
            if high:
                frame.rect(x + 8, held - high, wide - 16, high, "gradients")
            bottom = sent
            for verb, kind in KINDS.items():
                high = SENT * record["sent"].get(verb, 0) / most_sent
                if high:
                    frame.rect(x + 8, bottom - high, wide - 16, high, kind)
                    bottom -= high
            if record["update"]:
                frame.rect(x + 4, update, wide - 8, UPDATE, "optimizer", str(record["update"]), size=13)
        if sent_in(record):
            frame.text(x + wide / 2, sent + 15, gb(sent_in(record)).replace(".00", ""), anchor="middle", size=11.5)
        if record["update"]:  # the end of a window
            frame.line(x + wide - 1, 4, x + wide - 1, update + UPDATE + 10, color=INK, dashed=True)
    for y in (held, sent):
        frame.line(LEFT, y, svg.WIDTH, y, color=FAINT)


def described(records: Sequence[dict]) -> str:
    """A loop in words."""
    sends = ", ".join(gb(sent_in(record)) if sent_in(record) else "nothing" for record in records)
    at = [str(number) for number, record in enumerate(records, 1) if record["update"]]
    return f"they send {sends}; the update comes at micro-batch {' and '.join(at) if at else 'none of them'}"
