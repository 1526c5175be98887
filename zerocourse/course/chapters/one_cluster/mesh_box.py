"""The ranks of a mesh as a box with three directions, with the nodes that they lie in and the bytes along its edges."""

from collections.abc import Mapping

from ....errors import BadInput
from ....layout.mesh import Mesh
from ...show import Shown
from ...show.palette import INK
from ...show.pictures import svg

WIDE, HIGH, GAP, TOP, LEFT = 74, 46, 46, 30, 60  # units: a rank's box, the space between two, and the margins
NODES = ("#cfe6f5", "#fbf5b5", "#e3e3e3", "#f5d9e8", "#d5efe0", "#fbe3cc", "#e6ddf3", "#ffffff")  # fills of nodes 0 to 7
MOST = 32  # ranks


def mesh_box(mesh: Mesh, sent: Mapping[str, int] | None = None) -> Shown:
    """Axes of more than one rank: the last goes to the right, the one before it down, and the first into the picture, up and to the right.

    Ranks of one node have one fill, and the number of the node. Solid lines join the groups of the last two axes, dashed ones
    those of the first. The first line of each axis has the bytes that rank 0 has `sent` along it, where they are given, and below
    stands over which links its groups talk.
    Raises BadInput for more than three such axes, or more than 32 ranks.
    """
    axes = [axis for axis, size in mesh.sizes.items() if size > 1]
    if len(axes) > 3 or mesh.world_size > MOST:
        raise BadInput(f"the mesh {mesh.sizes} has {len(axes)} axes of several ranks and {mesh.world_size} ranks: a picture has "
                       f"room for 3 axes and {MOST} ranks")
    deep, down, right = [None] * (3 - len(axes)) + axes
    depth, rows, columns = (mesh.sizes[axis] if axis else 1 for axis in (deep, down, right))
    far, low = depth * (WIDE + GAP), depth * (HIGH + GAP)  # from column to column, and from row to row
    links = [f"{axis}: {mesh.sizes[axis]} ranks, {mesh.link(axis)}" + (f", {sent[axis]:,} bytes from rank 0" if sent else "") for axis in axes]
    bottom = TOP + rows * low
    drawing = svg.Drawing(max(LEFT + columns * far, 300), bottom + 10 + 20 * len(links))

    def corner(at: Mapping[str, int]) -> tuple[float, float]:
        behind = at.get(deep, 0)
        return (LEFT + behind * (WIDE + GAP) + at.get(right, 0) * far,
                TOP + (depth - 1 - behind) * (HIGH + GAP) + at.get(down, 0) * low)

    labels = []  # on top of all lines
    for rank in range(mesh.world_size):
        at = mesh.coordinates(rank)
        x, y = corner(at)
        for axis, line in ((right, lambda x, y: (x - far + WIDE, y + HIGH / 2, x, y + HIGH / 2)),
                           (down, lambda x, y: (x + WIDE / 2, y - low + HIGH, x + WIDE / 2, y)),
                           (deep, lambda x, y: (x - GAP, y + HIGH + GAP, x, y + HIGH))):
            if axis and at[axis]:
                ends = line(x, y)
                before = mesh.rank(**at | {axis: at[axis] - 1})
                drawing.line(*ends, width=2, dashed=axis == deep, data={"axis": axis, "from": before, "to": rank})
                if sent and rank == mesh.rank(**{axis: 1}):
                    labels.append((0.7 * ends[0] + 0.3 * ends[2], 0.7 * ends[1] + 0.3 * ends[3] + 5, f"{sent[axis]:,}"))
        node = mesh.node(rank)
        drawing.rect(x, y, WIDE, HIGH, fill=NODES[node % len(NODES)], data={"rank": rank, "node": node})
        drawing.text(x + WIDE / 2, y + 20, f"rank {rank}", bold=True, anchor="middle", size=14)
        drawing.text(x + WIDE / 2, y + 37, f"node {node}", anchor="middle", size=12)
    for axis in axes:
        for index in range(mesh.sizes[axis]):
            x, y = corner({axis: index} if axis != right else {axis: index, down: rows - 1})
            place = {deep: (x, y - 8, "start"), down: (x - 8, y + HIGH / 2 + 5, "end"), right: (x + WIDE / 2, y + HIGH + 18, "middle")}
            drawing.text(*place[axis][:2], f"{axis} {index}", size=13, bold=axis == deep, color=INK, anchor=place[axis][2])
    for x, y, words in labels:
        drawing.text(x, y, words, size=12, anchor="middle", plate=True)
    for line, words in enumerate(links):
        drawing.text(0, bottom + 6 + 20 * line, words, size=14)
    said = "; ".join(links) + ". " + "; ".join(f"{mesh.name(rank)} on node {mesh.node(rank)}" for rank in range(mesh.world_size)) + "."
    return Shown(said, svg=svg.still(drawing, "The ranks of a mesh", said))
