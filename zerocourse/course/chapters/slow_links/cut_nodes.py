"""Where the slices of one model lie on nodes of several ranks: cut among all ranks, or inside each node. Slices in true size."""

from ....errors import BadInput
from ...show import Shown
from ...show.palette import FAINT
from ...show.pictures import svg

FILLS = "#cfe6f5", "#fbf5b5"  # of neighbours in turn; their numbers tell them apart
WIDE, HIGH, LEFT, TOP, GAP = 250.0, 34.0, 56.0, 44.0, 60.0  # units: of a whole model, of a node's row, and where the first is


def cut_nodes(nodes: int, per_node: int) -> Shown:
    """Each row is a node, as wide as the whole model: what its ranks hold of it. Left, one group of all ranks; right, a hybrid.

    Raises BadInput for more than 4 nodes or 8 ranks in one.
    """
    if not (1 <= nodes <= 4 and 1 <= per_node <= 8):
        raise BadInput(f"{nodes} nodes of {per_node} ranks: a picture has room for 4 of 8")
    drawing = svg.Drawing(LEFT + 2 * WIDE + GAP + 4, TOP + nodes * (HIGH + 14) + 34)
    ways = {"one group": (nodes * per_node, "a gather needs all ranks"), "hybrid": (per_node, "a gather stays in its row")}
    for column, (name, (slices, words)) in enumerate(ways.items()):
        left = LEFT + column * (WIDE + GAP)
        drawing.text(left, 16, name, bold=True)
        drawing.text(left, 34, f"a slice is 1/{slices} of the model", size=13, color=FAINT)
        for node in range(nodes):
            y = TOP + node * (HIGH + 14)
            drawing.rect(left, y, WIDE, HIGH, stroke="#bbbbbb", dashed=True)  # what this node does not hold
            for rank in range(per_node):
                number = (node * per_node + rank) % slices
                drawing.rect(left + WIDE * number / slices, y, WIDE / slices, HIGH, fill=FILLS[number % 2], label=str(node * per_node + rank),
                             size=13, data={"way": name, "rank": node * per_node + rank, "start": f"{number / slices:.6g}"})
            if not column:
                drawing.text(0, y + HIGH / 2 + 5, f"node {node}", size=13)
        drawing.text(left, TOP + nodes * (HIGH + 14) + 8, words, size=13)
    drawing.text(LEFT + WIDE + GAP, TOP + nodes * (HIGH + 14) + 26, "sums also go down the columns", size=13)
    said = (f"{nodes} nodes of {per_node} ranks. Left, one group: each rank holds 1/{nodes * per_node} of the model, and a node a part of it. "
            f"Right, hybrid: each rank holds 1/{per_node} of it, and each node all of it, so that ranks below each other hold the same slice.")
    return Shown(said, svg=svg.still(drawing, "Two ways to cut a model on nodes", said))
