"""The ranks of a mesh as a box: panels side by side, rows and columns, with the nodes that they lie in and the axes named."""

from collections.abc import Mapping

from ....errors import BadInput
from ....layout.mesh import Mesh
from ...show import Shown
from ...show.palette import INK
from ...show.pictures import svg

WIDE, HIGH, GAP, PANEL, TOP, LEFT = 74, 46, 20, 44, 70, 60  # units: a rank's box, the space between, and around
NODES = ("#cfe6f5", "#fbf5b5", "#e3e3e3", "#f5d9e8", "#d5efe0", "#fbe3cc", "#e6ddf3", "#ffffff")  # fills of nodes 0 to 7
MOST = 32  # ranks


def mesh_box(mesh: Mesh, sent: Mapping[str, int] | None = None) -> Shown:
    """Axes of more than one rank: the last goes to the right, the one before it down, the first in panels.

    Ranks of one node have one fill, and the number of the node. Solid lines join the groups of the last two axes, and a dashed one
    leads from each rank to its neighbour along the first. Below stands over which links the groups of each axis talk, and how many
    bytes a rank has `sent` along it, where that is given.
    Raises BadInput for more than three such axes, or more than 32 ranks.
    """
    axes = [axis for axis, size in mesh.sizes.items() if size > 1]
    if len(axes) > 3 or mesh.world_size > MOST:
        raise BadInput(f"the mesh {mesh.sizes} has {len(axes)} axes of several ranks and {mesh.world_size} ranks: a picture has "
                       f"room for 3 axes and {MOST} ranks")
    panels, down, right = [None] * (3 - len(axes)) + axes
    columns, rows = (mesh.sizes[right] if right else 1), (mesh.sizes[down] if down else 1)
    count = mesh.sizes[panels] if panels else 1
    panel = columns * WIDE + (columns - 1) * GAP
    width = LEFT + count * panel + (count - 1) * PANEL
    bottom = TOP + rows * HIGH + (rows - 1) * GAP
    links = [f"{axis}: {mesh.sizes[axis]} ranks, {mesh.link(axis)}" + (f", {sent[axis]:,} bytes from a rank" if sent else "") for axis in axes]
    drawing = svg.Drawing(max(width + 2, 300), bottom + 30 + 20 * len(links))
    for rank in range(mesh.world_size):
        at = mesh.coordinates(rank)
        x = LEFT + (at[panels] if panels else 0) * (panel + PANEL) + (at[right] if right else 0) * (WIDE + GAP)
        y = TOP + (at[down] if down else 0) * (HIGH + GAP)
        node = mesh.node(rank)
        drawing.rect(x, y, WIDE, HIGH, fill=NODES[node % len(NODES)], data={"rank": rank, "node": node})
        drawing.text(x + WIDE / 2, y + 20, f"rank {rank}", bold=True, anchor="middle", size=14)
        drawing.text(x + WIDE / 2, y + 37, f"node {node}", anchor="middle", size=12)
        if right and at[right]:
            drawing.line(x - GAP, y + HIGH / 2, x, y + HIGH / 2, width=3)
        if down and at[down]:
            drawing.line(x + WIDE / 2, y - GAP, x + WIDE / 2, y, width=3)
        if panels and at[panels]:  # from the same place of the panel before, above the boxes between them
            over, start = y - GAP * (1 + (at[right] if right else 0)) / (columns + 1), x - panel - PANEL + WIDE / 2 + 4
            end = x + WIDE / 2 - 4
            drawing.line(start, y, start, over, dashed=True)
            drawing.line(start, over, end, over, dashed=True, data={"from": mesh.rank(**at | {panels: at[panels] - 1}), "to": rank})
            drawing.line(end, over, end, y, dashed=True)
    if panels:
        for number in range(count):
            x = LEFT + number * (panel + PANEL) + panel / 2
            drawing.text(x, 18, f"{panels} {number}", bold=True, anchor="middle")
    for name, size, place in ((right, columns, lambda i: (LEFT + i * (WIDE + GAP) + WIDE / 2, 44)),
                              (down, rows, lambda i: (LEFT - 10, TOP + i * (HIGH + GAP) + HIGH / 2 + 5))):
        for index in range(size) if name else ():
            x, y = place(index)
            for number in range(count if name == right else 1):
                drawing.text(x + number * (panel + PANEL), y, f"{name} {index}", size=13, color=INK,
                             anchor="middle" if name == right else "end")
    for line, words in enumerate(links):
        drawing.text(0, bottom + 26 + 20 * line, words, size=14)
    said = "; ".join(links) + ". " + "; ".join(f"{mesh.name(rank)} on node {mesh.node(rank)}" for rank in range(mesh.world_size)) + "."
    return Shown(said, svg=svg.still(drawing, "The ranks of a mesh", said))
