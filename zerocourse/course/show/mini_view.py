"""`zero/mini.py` beside the stages proper: what the real code does more, difference by difference, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pkgutil import resolve_name

from ...errors import BadInput
from .cells.shown import Shown
from .cells.sources import AT_SPACES, COLUMN, code_of, coloured, file_of, pre


@dataclass(frozen=True)
class Difference:
    """A piece of mini and the piece of the real code that does the same work and more.

    mini: a function of `zerocourse.zero.mini`, or "" where mini has nothing of the kind.
    real: a function of the package, as "room.file:function".
    why: one sentence.
    """

    what: str
    mini: str
    real: str
    why: str

    @property
    def mini_code(self) -> Callable | None:
        return resolve_name(f"zerocourse.zero.mini:{self.mini}") if self.mini else None

    @property
    def real_code(self) -> Callable:
        return resolve_name(f"zerocourse.{self.real}")


DIFFERENCES: dict[int | str, tuple[Difference, ...]] = {
    0: (
        Difference("a handle", "MiniStage0.reduce_gradient", "zero.ddp:all_reduce",
                   "The real one starts the sum and returns a handle instead of the result, because the sum can "
                   "travel while the backward computes the next unit."),
        Difference("overlap, and one order", "MiniStage0.on_gradient", "zero.passes.backward:Backward.run_ready",
                   "Gradients are reduced during the backward and not at the step, and strictly in one order, "
                   "because ranks that start the same collectives in different orders wait for each other for ever."),
        Difference("accumulation", "MiniStage0.add_to_shard", "zero.ddp:DataParallel.no_sync",
                   "The real one has to be told which backwards only accumulate, because by the time of the step, "
                   "where mini reduces, it would be too late to overlap."),
        Difference("unused and frozen parameters", "MiniStage0.pre_step", "zero.passes.agreement:agree",
                   "The ranks tell each other who has a gradient, because a parameter may be frozen, or used on one "
                   "rank and not on another, and all of them must make the same step."),
        Difference("exceptions", "", "zero.ddp:DataParallel.recover",
                   "A forward or backward that fails leaves collectives under way and buckets half full, so somebody "
                   "has to finish and drop them before the next step can be right."),
    ),
    1: (
        Difference("no second buffer", "MiniStage1.reduce_gradient", "zero.stage1:reduce_scatter_in_place",
                   "The slice of the sum is written where it lay in the bucket, because new memory at this moment "
                   "would come on top of everything else that a rank holds."),
        Difference("several gathers under way", "MiniStage1.post_step", "zero.stage1:sharded_step",
                   "All gathers are started before the first is waited for, because the link would stand still "
                   "between one unit and the next."),
    ),
    2: (
        Difference("a bucket that is still being sent", "MiniStage2.post_backward", "zero.stage2:reduce_scatter_and_free",
                   "The handle keeps the last reference to the bucket, because the backward goes on while it is "
                   "sent, and its memory is to be free as soon as that is over."),
        Difference("few at a time", "", "zero.passes.program:Writer.make_room",
                   "Only `in_flight` units may be on their way at once, because a backward that never waits would "
                   "collect the whole gradient again, in buckets that are still being sent."),
    ),
    3: (
        Difference("two verbs in place of one", "MiniStage3.unshard", "zero.stage3:Stage3.unshard_unit",
                   "To start a gather and to wait for it are two calls, because the next unit can travel while this "
                   "one computes."),
        Difference("prefetch", "", "zero.passes.schedule:Prefetcher",
                   "Somebody has to know which unit comes next before it is called, so the order of units is "
                   "recorded in one pass and used in the next."),
        Difference("keeping parameters", "MiniStage3.post_forward", "zero.stage3:Stage3.post_forward",
                   "With `reshard_after_forward=False` parameters stay until their backward, because who has the "
                   "memory can send 2Ψ instead of 3Ψ."),
        Difference("checkpointing", "MiniStage3.post_forward", "zero.stage3:Stage3.before_compute",
                   "A unit that is computed again inside the backward is gathered like any other but leaves the "
                   "recorded order alone, because its own backward follows at once."),
        Difference("freed memory reads as NaN", "MiniStage3.reshard", "memory.storage:FreeableStorage",
                   "A tensor that someone kept after it was freed reads as NaN, because PyTorch would read address "
                   "zero, and the process would die without a word."),
    ),
    "units": (
        Difference("tied weights", "cut", "zero.buffers.unit:cut_into_units",
                   "A weight of two units goes to the root, because the root is there as long as any unit computes, "
                   "and `units=` names other units, because not every model is a list of blocks."),
        Difference("half precision", "MiniStage0.__init__", "zero.buffers.buffer:FlatBuffer.build",
                   "Beside a buffer in bf16 stands this rank's slice in fp32, because small updates to bf16 numbers "
                   "are lost in rounding."),
        Difference("gradients one can wait for", "MiniStage0.on_gradient", "zero.buffers.gradients:GradientBuffer.collect",
                   "A gradient remembers whether it was reduced already, because a unit that runs twice, or a second "
                   "backward, brings more of it while the first part is on its way."),
        Difference("the end of a unit's backward", "attach", "zero.passes.program:finished_at",
                   "The end is read from the order of the units and not from the number of gradients, because that "
                   "number may differ from rank to rank when some parameters are unused."),
    ),
    "optimizer": (
        Difference("groups and states", "mini_shard", "zero.shard:take_over",
                   "The optimizer gets a piece for each parameter and not one slice for each unit, because learning "
                   "rates, weight decay and the states of a checkpoint belong to parameters."),
        Difference("clipping", "", "zero.ddp:DataParallel.clip_grad_norm_",
                   "The norm is a sum over all ranks, because each of them has only its slices of the gradient."),
        Difference("ranks that disagree", "refuse_what_is_not_plain", "zero.shard:check_same",
                   "The ranks compare what they were asked to do, because two that were given different models or "
                   "options would meet in a collective that never ends."),
        Difference("whole parameters", "", "zero.whole.consolidate:state_dict",
                   "A file or another program needs whole tensors under their own names, so the slices of all ranks "
                   "are put together again."),
    ),
}


def mini_beside(topic: int | str) -> Shown:
    """Mini's code beside the real code. topic: 0 to 3 (a stage), "units" or "optimizer"; BadInput for others."""
    if topic not in DIFFERENCES or isinstance(topic, bool):
        raise BadInput(f"topic is {topic!r}: it must be one of {', '.join(map(repr, DIFFERENCES))}")
    text, html = [], []
    for difference in DIFFERENCES[topic]:
        codes = [(title_of(code), code_of(code) if code else "")
                 for code in (difference.mini_code, difference.real_code)]
        text += [f"== {difference.what}", difference.why, *(f"\n# {title}\n{code}" for title, code in codes), ""]
        heads = "".join(f'<th style="text-align:left"><code>{escape(title)}</code></th>' for title, _ in codes)
        cells = "".join(f'<td style="{COLUMN}">{pre(coloured(code), AT_SPACES)}</td>' for _, code in codes)
        html.append(f"<div><b>{escape(difference.what)}.</b> {escape(difference.why)}</div>"
                    f"<table><tr>{heads}</tr><tr>{cells}</tr></table>")
    return Shown("\n".join(text).rstrip(), "".join(html))


def title_of(code: Callable | None) -> str:
    return f"{file_of(code)}: {code.__qualname__}" if code else "not in mini"
