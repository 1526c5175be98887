"""Micro-batches in flight, moment by moment: what each rank computes, and of which micro-batches it keeps the activations."""

from fractions import Fraction

from ....parallel.pipeline import Timing
from ....parallel.pipeline.schedules.makespan import Computed
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg
from ...show.pictures.pipeline_rows import KINDS
from ...show.pictures.timeline_lanes import LOOKS

LEFT, NOW, ROW, CHIP = 64.0, 150.0, 40.0, 30.0  # units: where rows begin, the width of what is computed, a row, a micro-batch


def flight_film(name: str, timing: Timing) -> Film:
    """A frame for each moment at which a rank begins a forward or a backward."""
    moments = sorted({span.start for span in timing.spans})
    return Film(f"{name}: micro-batches in flight", [flight_frame(timing, moment) for moment in moments], seconds=1.0,
                words=f"{name} on {timing.plan.ranks} ranks with {timing.plan.micro_batches} micro-batches.",
                keys=range(0, len(moments), max(1, len(moments) // 5)))


def flight_frame(timing: Timing, moment: Fraction) -> Frame:
    drawing = svg.Drawing(svg.WIDTH, (timing.plan.ranks + 1) * ROW)
    drawing.text(LEFT, 16, "computes (dashed: waits)", size=12, color=FAINT)
    drawing.text(LEFT + NOW + 30, 16, "keeps the activations of micro-batch", size=12, color=FAINT)
    begins, kept = [], []
    for rank in range(timing.plan.ranks):
        y, spans = (rank + 0.7) * ROW, timing.of_rank(rank)
        now = next((span for span in spans if span.start <= moment < span.end), None)
        kept.append(held_at(spans, moment))
        drawing.text(0, y + 20, f"rank {rank}", size=14)
        if now:
            kind, _, number = now.action
            begins += [f"rank {rank} begins {kind}{number}"] * (now.start == moment)
            look = LOOKS[KINDS[kind]]
            drawing.rect(LEFT, y, NOW, CHIP, fill=look.fill, data={"rank": rank, "kind": kind, "micro": number})
            drawing.text(LEFT + NOW / 2, y + 20, f"{kind}{number}", anchor="middle", color=look.ink)
        else:
            drawing.rect(LEFT, y, NOW, CHIP, stroke=FAINT, dashed=True)
        for number in range(timing.plan.micro_batches):
            x = LEFT + NOW + 30 + number * (CHIP + 6)
            if number in kept[rank]:
                drawing.rect(x, y, CHIP, CHIP, fill=LOOKS["forward"].fill, label=str(number), data={"rank": rank, "kept": number})
            else:
                drawing.rect(x, y, CHIP, CHIP, stroke="#c8c8c8")
    said = f"{', '.join(begins)}. The ranks keep {', '.join(str(len(each)) for each in kept)} micro-batches."
    return Frame(drawing, said[0].upper() + said[1:], f"After {float(moment):.1f} units")


def held_at(spans: list[Computed], moment: Fraction) -> list[int]:
    """Of which micro-batches a rank keeps activations: their forward has begun, and their backward is not over."""
    begun = {span.action.micro_batch for span in spans if span.action.kind == "F" and span.start <= moment}
    return sorted(begun - {span.action.micro_batch for span in spans if span.action.kind in ("B", "W") and span.end <= moment})
