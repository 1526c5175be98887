"""The picture of a mesh has each rank once, in its node's colour and at its coordinates, and says what links its axes use."""

import re

import pytest

from zerocourse.course.chapters.three_d_parallelism.mesh_box import mesh_box
from zerocourse.errors import BadInput
from zerocourse.layout.mesh import Mesh

BOX = re.compile(r'<rect x="(\S+)" y="(\S+)" width="74" height="46" fill="(\S+)" data-rank="(\d+)" data-node="(\d+)"')


@pytest.mark.parametrize("sizes, per_node, places", (
    ({"pp": 2, "dp": 2, "tp": 2}, 4, (4, 2)), ({"dp": 2, "tp": 4}, 4, (4, 2)), ({"tp": 4}, None, (4, 1)),
    ({"pp": 3, "dp": 1, "tp": 2}, 2, (2, 3)), ({"dp": 1, "tp": 1}, None, (1, 1))))
def test_ranks_stand_at_their_coordinates(sizes, per_node, places):
    mesh = Mesh(sizes, per_node)
    boxes = {int(rank): (float(x), float(y), fill, int(node)) for x, y, fill, rank, node in BOX.findall(mesh_box(mesh).svg)}
    assert sorted(boxes) == list(range(mesh.world_size))
    assert (len({box[0] for box in boxes.values()}), len({box[1] for box in boxes.values()})) == places
    assert len({box[:2] for box in boxes.values()}) == mesh.world_size, "no two in one place"
    assert all(box[3] == mesh.node(rank) for rank, box in boxes.items())
    assert len({box[2:] for box in boxes.values()}) == len({box[3] for box in boxes.values()}), "a node has one fill"
    axes = [axis for axis, size in mesh.sizes.items() if size > 1]
    for rank in range(mesh.world_size - 1):  # along the last axis to the right
        one, other = mesh.coordinates(rank), mesh.coordinates(rank + 1)
        if axes and all(one[axis] == other[axis] for axis in mesh.axes if axis != axes[-1]):
            assert boxes[rank + 1][0] > boxes[rank][0] and boxes[rank + 1][1] == boxes[rank][1]


def test_it_says_which_links_the_axes_use():
    drawn = mesh_box(Mesh({"pp": 2, "dp": 2, "tp": 2}, per_node=4))
    for words in ("pp: 2 ranks, between nodes", "dp: 2 ranks, inside a node", "tp: 2 ranks, inside a node"):
        assert f">{words}<" in drawn.svg and words in drawn.text
    assert "rank 5 (pp 1, dp 0, tp 1) on node 1" in drawn.text
    joined = re.findall(r'<line [^>]*data-from="(\d+)" data-to="(\d+)"', drawn.svg)
    assert sorted([int(one), int(other)] for one, other in joined) == Mesh({"pp": 2, "dp": 2, "tp": 2}).groups("pp")


def test_it_says_what_a_rank_has_sent():
    drawn = mesh_box(Mesh({"dp": 2, "tp": 2}), {"dp": 72_064, "tp": 147_456})
    assert "tp: 2 ranks, inside a node, 147,456 bytes from a rank" in drawn.text


def test_what_has_no_room_is_refused():
    for sizes in ({"a": 2, "b": 2, "c": 2, "d": 2}, {"dp": 64}):
        with pytest.raises(BadInput, match="room for 3 axes and 32 ranks"):
            mesh_box(Mesh(sizes))
