"""The life of one unit through a recorded step of stage 3: sharded, gathered, used, freed; and again in the backward, in
which its gradient is added up over the ranks and only a slice of it stays.
"""

from ....errors import BadInput
from ....formulas.units import gb
from ...show.film import Film, Frame
from ...show.palette import FAINT, INK
from ...show.pictures import svg
from ...show.pictures.placing import GRADIENTS, PARAMETERS, Placed, find, pieces, units
from ...show.pictures.recorded_stages import RecordedRank, recorded_stage

STAGE, SECONDS = 3, 2.0
WIDE, LANE, LABELS, GAP = 308, 18, 96, 14  # units: of a frame, of a lane, of the names at its left, between ranks
WHAT = {("start", 0): ("sharded", "Each rank keeps its slice."),
        ("all_gather", 0): ("all-gather", "Each has received the other slices."),
        ("forward", 0): ("forward", "The block computes with all of its parameters."),
        ("reshard", 0): ("free", "The gathered parameters are given back."),
        ("all_gather", 1): ("all-gather", "The backward needs them again."),
        ("backward", 0): ("backward", "Gradients fill a bucket."),
        ("reshard", 1): ("free", "The parameters are not needed any more."),
        ("reduce_scatter", 0): ("reduce-scatter", "Slices of the sum stay, the bucket goes.")}


def filmstrip(unit: str = "h.1") -> Film:
    """One unit on all ranks, frame by frame. Raises BadInput for a unit that is no block of the recorded model."""
    ranks = recorded_stage(STAGE)
    blocks = [name for name in units(ranks[0]) if name != "root"]
    if unit not in blocks:
        raise BadInput(f"unit is {unit!r}, which is no block of the recorded model: it has {', '.join(blocks)}")
    order = sorted(WHAT, key=lambda moment: index_of(ranks[0], unit, moment))
    whole = sum(piece.nbytes for piece in pieces(ranks[0], index_of(ranks[0], unit, ("forward", 0)), STAGE)
                if piece.unit == unit and piece.kind == "in flight")
    title = f"{unit} through a step of ZeRO-3"
    words = (f"{title}, on {len(ranks)} ranks, in {len(order)} frames: {', '.join(WHAT[moment][0] for moment in order)}. Its "
             f"parameters are {gb(whole)}, of which each rank keeps {gb(whole // len(ranks))} between the frames.")
    named = [Frame(frame(ranks, unit, moment), words, name) for moment in order for name, words in [WHAT[moment]]]
    return Film(title, named, words, SECONDS)


def index_of(rank: RecordedRank, unit: str, moment: tuple[str, int]) -> int:
    verb, number = moment
    return 0 if verb == "start" else find(rank, verb, unit, number)


def frame(ranks: list[RecordedRank], unit: str, moment: tuple[str, int]) -> svg.Drawing:
    """What the ranks hold of the unit at the end of one event. In each pair of lanes the upper one passes."""
    drawing = svg.Drawing(WIDE, 14 + 4 * LANE + 46)
    if moment[0] in ("forward", "backward"):
        drawing.rect(0, 1, 84, 20, fill=INK)
        drawing.text(42, 16, "computes", size=14, anchor="middle", color="white")
    elements = units(ranks[0])[unit]
    scale = (WIDE - LABELS - GAP * len(ranks)) / len(ranks) / elements
    top = {PARAMETERS: 20, GRADIENTS: 20 + 2 * LANE + 12}
    for of, y in top.items():
        drawing.text(0, y + 1.7 * LANE, of, size=14)
    for rank, recorded in enumerate(ranks):
        left = LABELS + rank * (elements * scale + GAP)
        held = [piece for piece in pieces(recorded, index_of(recorded, unit, moment), STAGE)
                if piece.unit == unit and piece.of in top]
        drawing.text(left + elements * scale / 2, 15, f"rank {rank}", size=12, anchor="middle", color=FAINT)
        for y in top.values():
            drawing.rect(left, y + LANE, elements * scale, LANE, stroke="#b4b4b4")
        for piece in held:
            y = top[piece.of] + (0 if piece.passing else LANE)
            drawing.rect(left + piece.start * scale, y, (piece.stop - piece.start) * scale, LANE, piece.kind, name_of(piece),
                         size=11, data={"rank": rank, "of": piece.of, "bytes": piece.nbytes})
        drawing.text(left + elements * scale / 2, top[GRADIENTS] + 2 * LANE + 16, gb(sum(piece.nbytes for piece in held)),
                     size=12, anchor="middle")
    return drawing


def name_of(piece: Placed) -> str:
    """What the piece is called: a whole that passes, a slice that stays, or what other ranks send of one."""
    if piece.passing:
        return "gathered" if piece.of == PARAMETERS else "bucket"
    return "slice" if piece.kind == piece.of else "arrives"
