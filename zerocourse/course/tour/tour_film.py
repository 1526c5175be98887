"""A step of ZeRO-3 that plays: what each rank computes, what travels and which bytes are alive, beside the lines of
`zero/mini.py` that do the same."""

from collections.abc import Mapping, Sequence

from ...errors import BadInput
from ...zero.mini import MiniStage3
from ..show.cells.sources import code_of
from ..show.film import Film
from ..show.timelines import step_film

WHERE = {"forward": "pre_forward = pre_backward = unshard", "backward": "def post_backward", "all_gather": "all_gather(self.full, self.shard)",
         "wait": "all_gather(self.full, self.shard)", "reshard": "self.full.untyped_storage().resize_(0)",
         "reduce_scatter": "self.reduce_gradient()", "step": "post_step = reshard"}  # what stands in the line of a verb


def lines_of(code: str) -> dict[str, int]:
    """Verb → the number of its line, counted from 0. Raises BadInput where the code has no such line."""
    lines, found = code.splitlines(), {}
    for verb, words in WHERE.items():
        there = [number for number, line in enumerate(lines) if words in line]
        if not there:
            raise BadInput(f"no line of the code has {words!r}: say in WHERE what the line of {verb!r} has now")
        found[verb] = there[0]
    return found


def tour_film(events: Sequence[dict], formulas: Mapping[str, int]) -> Film:
    """The events of all ranks as a film. formulas: name → bytes per rank, as dashed lines."""
    code = code_of(MiniStage3)
    return step_film(events, "ZeRO-3, one step", formulas, code, lines_of(code))
