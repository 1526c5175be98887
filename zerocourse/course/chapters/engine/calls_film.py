"""Who calls whom in the three lines of an engine's loop, recorded in a real training and drawn as a film."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ....engine import initialize
from ....models.gpt2 import CONFIGS, GPT
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg

LINES = ("loss = engine(x, y)", "engine.backward(loss)", "engine.step()")
LANES = ("engine", "stage", "optimizer", "scheduler")
WIDE, ROW, TOP = svg.WIDTH / len(LANES), 34.0, 36.0  # units: a lane, from one call to the next, where the first call stands
COLLECTIVES = {"reduce_scatter": "gradients leave", "all_gather": "parameters are gathered"}


@dataclass(frozen=True)
class LoopCall:
    """micro: the number of the micro-batch, from 1.   line: of `LINES`.   who: of `LANES`.   what: a few words."""

    micro: int
    line: int
    who: str
    what: str


def recorded_calls(config: Mapping, micro_batches: int) -> list[LoopCall]:
    """What happens in each line of a loop with this config, in order. Collective."""
    torch.manual_seed(0)
    model = GPT(CONFIGS["gpt2-tiny"])
    engine, optimizer, _, scheduler = initialize(model=model, config=dict(config))
    calls, here, comm = [], [0, 0], engine.zero.comm

    def note(who: str, what: str) -> None:
        call = LoopCall(*here, who, what)
        if call not in calls[-1:]:  # the collectives of one kind that follow each other are one entry
            calls.append(call)

    def watched(owner, name: str, who: str, what: str) -> None:
        inner = getattr(owner, name)

        def outer(*args, **kwargs):
            collectives()
            note(who, what)
            returned = inner(*args, **kwargs)
            collectives()
            return returned
        setattr(owner, name, outer)

    sent = dict(comm.sent)  # bytes by collective

    def collectives() -> None:
        for verb, words in COLLECTIVES.items():
            if comm.sent[verb] > sent.get(verb, 0):
                note("stage", words)
        sent.update(comm.sent)

    watched(engine.zero, "grad_norm", "stage", "norm, of all ranks")
    watched(engine.zero, "clip_grad_norm_", "stage", "clip")
    watched(optimizer, "step", "optimizer", "update of the slice")
    watched(optimizer, "zero_grad", "optimizer", "clear gradients")
    watched(scheduler, "step", "scheduler", "next rate")
    seed = torch.Generator().manual_seed(engine.global_rank)
    for micro in range(1, micro_batches + 1):
        tokens = torch.randint(256, (engine.train_micro_batch_size_per_gpu(), 33), generator=seed)
        here[:] = micro, 0
        note("engine", "forward")
        loss = engine(tokens[:, :-1], tokens[:, 1:])
        collectives()
        here[:] = micro, 1
        note("engine", f"loss / {engine.gradient_accumulation_steps()}, backward")
        engine.backward(loss)
        collectives()
        here[:] = micro, 2
        note("engine", "the window is full" if engine.is_gradient_accumulation_boundary() else "counts, and no more")
        engine.step()
        collectives()
    return calls


def calls_film(calls: Sequence[LoopCall]) -> Film:
    """A frame for each line of each micro-batch."""
    frames = []
    moments = sorted({(call.micro, call.line) for call in calls})
    high = TOP + ROW * max(sum((call.micro, call.line) == moment for call in calls) for moment in moments) + 6
    for micro, line in moments:
        made = [call for call in calls if (call.micro, call.line) == (micro, line)]
        others = [f"the {call.who}: {call.what}" for call in made[1:]]
        said = f"The engine: {made[0].what}." + (f" Then {'; '.join(others)}." if others else " It calls neither stage nor optimizer.")
        frames.append(Frame(frame(made, high), said, f"Micro-batch {micro}, {LINES[line]}", line))
    words = f"The calls behind three lines, in {moments[-1][0]} micro-batches. " + " ".join(each.words for each in frames)
    return Film("Who calls whom", frames, words, 2.0, code="\n".join(LINES))


def frame(calls: Sequence[LoopCall], high: float) -> svg.Drawing:
    drawing = svg.Drawing(svg.WIDTH, high)
    for number, lane in enumerate(LANES):
        x = WIDE * (number + 0.5)
        drawing.text(x, 18, lane, anchor="middle", bold=True)
        drawing.line(x, 26, x, high, color=FAINT, dashed=True)
    for row, call in enumerate(calls):
        x, y = WIDE * LANES.index(call.who), TOP + ROW * row
        drawing.rect(x + 3, y, WIDE - 6, ROW - 8, label=call.what, fill="white", size=12.5, data={"who": call.who, "what": call.what})
    return drawing
