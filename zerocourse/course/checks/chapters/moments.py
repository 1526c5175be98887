"""The memory of a training step, event by event, and what misunderstanding a wrong event gives away (exercise 1.5)."""

import math

from ..words import value_text

NOT_CLEARED = "Gradients are left over, or too much is freed: zero_grad frees them, and a step ends as it began."


def moments(units, stage, ranks):
    """The events of a step and the bytes after each."""
    shares, total = [-(-params // ranks) for params, _ in units], sum(params for params, _ in units)
    changes = [("start", 2 * (sum(shares) if stage == 3 else total) + 12 * (sum(shares) if stage else total))]
    for i, (params, activations) in enumerate(units):
        whole = 2 * params if stage == 3 else None
        changes += [(f"unshard {i}", whole), (f"forward {i}", activations), (f"reshard {i}", whole and -whole)]
    for i, (params, activations) in reversed(list(enumerate(units))):
        whole = 2 * params if stage == 3 else None
        changes += [(f"unshard {i}", whole), (f"backward {i}", 2 * params),
                    (f"reduce {i}", 2 * (shares[i] - params) if stage >= 2 else None),
                    (f"reshard {i}", whole and -whole), (f"free {i}", -activations)]
    events, held = [], 0
    for event, change in changes:
        if change is not None:
            held += change
            events.append((event, held))
    return [*events, ("zero_grad", events[0][1])]


def first_wrong_moment(case, got, right) -> str | None:
    """Words for the first moment that is wrong; None when that is no list of moments."""
    units, stage, ranks = case
    if not isinstance(got, (list, tuple)) or not all(isinstance(e, (list, tuple)) and len(e) == 2 for e in got):
        return None
    before = 0
    for number, (event, expected) in enumerate(zip(got, right, strict=False)):
        kind, _, unit = expected[0].partition(" ")
        if event[0] != expected[0]:
            why = _order(event[0], kind, stage)
            return f"event {number} is {event[0]!r} where {expected[0]!r} comes next. {why}".rstrip()
        if event[1] != expected[1]:
            text = (f"after event {number}, {event[0]!r}, a rank holds {expected[1]:_} bytes, and it says "
                    f"{value_text(event[1])}")
            if not isinstance(event[1], (int, float)):
                return text
            again = expected[0] in [name for name, _ in right[:number]]  # an unshard or reshard of the backward
            found = _changes(kind, again, *units[int(unit)], ranks, units) if unit else _start(units, stage, ranks)
            why = next((sentence for change, sentence in found if math.isclose(before + change, event[1])), "")
            return f"{text}. {why if kind != 'zero_grad' else NOT_CLEARED}".rstrip()
        before = expected[1]
    if len(got) != len(right):
        return f"it has {len(got)} events, and there are {len(right)}: the last one is 'zero_grad'"
    return None


def _order(event, due: str, stage: int) -> str:
    """Why another event comes at this point than is due."""
    kind = str(event).partition(" ")[0]
    if kind == "reduce" and stage < 2:
        return "Below stage 2 whole gradients are kept until the step: nothing is reduced to shares."
    if due == "reduce":
        return "From stage 2 on each unit's gradient is reduced at once, so that only the rank's share of it stays."
    if kind in ("unshard", "reshard") and stage < 3:
        return "Only stage 3 shards the parameters: below it there is nothing to unshard."
    if due == "unshard" and kind == "backward":
        return "The backward of stage 3 needs whole parameters too, and the forward has freed them: unshard again."
    if due == "reshard":
        return "What unshard gathered is to be freed as soon as the unit is done."
    if kind == due:
        return "The backward goes through the units from the last to the first."
    return ""


def _start(units, stage, ranks):
    """Values that `start` may have by mistake, each with its sentence."""
    params = [params for params, _ in units]
    total, shares = sum(params), sum(-(-p // ranks) for p in params)

    def value(share=shares, optimizer=12, from_stage=(3, 1), gradients=0):
        parameters, optimized = (share if stage >= first else total for first in from_stage)
        return 2 * parameters + optimizer * optimized + gradients

    return [
        (value(optimizer=8), "The optimizer holds 12 bytes a parameter, not 8: the fp32 master copy belongs to it."),
        (value(gradients=2 * (shares if stage >= 2 else total)), "There are no gradients at the start: the step before "
         "has freed them."),
        (value(from_stage=(3, 0)), "At stage 0 every rank holds the whole optimizer."),
        (value(from_stage=(1, 1)), "The parameters are whole on every rank below stage 3."),
        (value(from_stage=(2, 1)), "The parameters are whole on every rank below stage 3, at stage 2 as well."),
        (value(from_stage=(4, 1)), "At stage 3 a rank holds only its share of the parameters between steps."),
        (value(from_stage=(3, 2)), "The optimizer's states are divided from stage 1 on."),
        (value(from_stage=(4, 4)), "From stage 1 on the optimizer's states are divided, at stage 3 the parameters "
                                   "too."),
        (value(share=-(-total // ranks)), "Each unit is cut by itself: add up the units' shares, each rounded up, "
         "instead of cutting the sum."),
        (value(share=total / ranks), "A share is a whole number of parameters: round each unit's up."),
        (value(share=total // ranks), "A share is rounded up, not down, and each unit is cut by itself."),
        (value(share=sum(p // ranks for p in params)), "A share is rounded up, not down: else some parameters belong "
         "to nobody."),
    ]


def _changes(kind: str, backward: bool, params: int, activations: int, ranks: int, units):
    """Changes that an event of a unit may bring by mistake, each with its sentence."""
    share, whole, total = -(-params // ranks), 2 * params, sum(params for params, _ in units)
    unshard = [(whole - 2 * share, "Unshard gathers into a buffer of its own: the unit's share stays beside it, so the "
                "whole unit is added, not only the part that was missing."),
               (2 * total, "That is the whole model: stage 3 has one unit whole at a time.")]
    return {
        "unshard": [(0, "The backward of stage 3 needs whole parameters too: the forward has freed them, so unshard "
                     "adds the unit's 2 bytes a parameter again."), *unshard] if backward else unshard,
        "forward": [(0, "The forward leaves its activations behind: the backward needs them.")],
        "reshard": [(0, "What unshard gathered is never freed: then stage 3 holds the whole model after all."),
                    (-whole - activations, "Activations are not freed with the parameters: they wait for the "
                                           "backward."),
                    (2 * share - whole, "Reshard frees the whole buffer: the share was beside it all the time.")],
        "backward": [(whole - activations, "The activations are still there while the gradient is made: they go with "
                      "`free`, and this is the moment at which most is held."),
                     (2 * share, "The backward makes the unit's whole gradient: it becomes a share only when it is "
                                 "reduced."),
                     (2 * whole, "A gradient is fp16 here: 2 bytes a parameter."),
                     (0, "The backward makes gradients: 2 bytes a parameter.")],
        "reduce": [(-whole, "After reduce nothing of the gradient is left: the rank's share has to stay until the "
                    "optimizer's step."),
                   (0, "The whole gradient is still there after reduce: only the rank's share of it stays."),
                   (2 * share, "The whole gradient is still there beside the share: reduce frees it.")],
        "free": [(0, "Activations are never freed: once a unit's backward is over, nobody needs them.")],
    }[kind]
