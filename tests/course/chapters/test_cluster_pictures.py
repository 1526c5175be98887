"""Pictures of chapters 18 to 20: each rank and each slice stands where it is, and what is drawn is what ranks have recorded."""

import re

import pytest

from zerocourse.course.chapters.long_sequences.ring_film import recorded_ring, ring_film
from zerocourse.course.chapters.long_sequences.timed_orders import timed_orders
from zerocourse.course.chapters.long_sequences.turned_table import HEADS, TOKENS, recorded_turn, turned_table
from zerocourse.course.chapters.one_cluster.mesh_box import mesh_box
from zerocourse.course.chapters.slow_links.cable import recorded, true_sizes
from zerocourse.course.chapters.slow_links.cut_nodes import cut_nodes
from zerocourse.errors import BadInput
from zerocourse.layout.mesh import Mesh

BOX = re.compile(r'<rect x="(\S+)" y="(\S+)" width="74" height="46" fill="(\S+)" data-rank="(\d+)" data-node="(\d+)"')


@pytest.mark.parametrize("sizes, per_node, places", (
    ({"pp": 2, "dp": 2, "tp": 2}, 4, (4, 4)), ({"dp": 2, "tp": 4}, 4, (4, 2)), ({"tp": 4}, None, (4, 1)),
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
    joined = re.findall(r'<line [^>]*data-axis="(\w+)" data-from="(\d+)" data-to="(\d+)"', drawn.svg)
    for axis in ("pp", "dp", "tp"):
        assert sorted([int(one), int(other)] for of, one, other in joined if of == axis) == Mesh({"pp": 2, "dp": 2, "tp": 2}).groups(axis)


def test_it_says_what_a_rank_has_sent():
    drawn = mesh_box(Mesh({"dp": 2, "tp": 2}), {"dp": 72_064, "tp": 147_456})
    assert "tp: 2 ranks, inside a node, 147,456 bytes from rank 0" in drawn.text
    assert drawn.svg.count(">147,456<") == drawn.svg.count(">72,064<") == 1, "on one edge of each axis"


def test_what_has_no_room_is_refused():
    for sizes in ({"a": 2, "b": 2, "c": 2, "d": 2}, {"dp": 64}):
        with pytest.raises(BadInput, match="room for 3 axes and 32 ranks"):
            mesh_box(Mesh(sizes))


# 19 -------------------------------------------------------------------------------------------------------------------

def test_the_ring_computes_each_block_of_the_triangle_once_and_zigzag_waits_for_nobody(pool):
    orders = {order: pool(4).run(recorded_ring, order) for order in ("contiguous", "zigzag")}
    for order, parts in (("contiguous", 4), ("zigzag", 8)):
        blocks = [block for of_rank in orders[order] for step in of_rank for block in step.blocks]
        assert sorted(blocks) == [(query, key) for query in range(parts) for key in range(query + 1)]
        for rank, of_rank in enumerate(orders[order]):
            assert [step.owner for step in of_rank] == [(rank - hops) % 4 for hops in range(4)]
            assert [step.seen for step in of_rank] == sorted(step.seen for step in of_rank) and of_rank[-1].seen == 1
    for step in range(4):
        assert len({of_rank[step].work for of_rank in orders["zigzag"]}) == 1
        assert sum(of_rank[step].work > 0 for of_rank in orders["contiguous"]) == 4 - step
    film = ring_film(orders)
    drawn = re.findall(r'data-rank="(\d)" data-query="(\d)" data-key="(\d)" data-step="(\d)"', film.still(3))
    assert len(drawn) == 4 * 5 // 2 + 8 * 9 // 2 and "contiguous: 1 of 4 ranks compute" in film.frames[3].caption.lower()


def test_the_table_is_turned_and_turned_back(pool):
    ranks = pool(4).run(recorded_turn)
    every = sorted((token, head) for token in range(TOKENS) for head in range(HEADS))
    for moment in range(3):
        assert sorted(entry for of_rank in ranks for entry in of_rank[moment]) == every
    assert all({head for _, head in of_rank[1]} == {rank} and of_rank[0] == of_rank[2] for rank, of_rank in enumerate(ranks))
    assert "24 of 32 entries have gone to another rank" in turned_table(ranks).frames[1].caption


def test_a_contiguous_ring_takes_longer(pool):
    seconds = pool(4).run(timed_orders, 64, 0.4, 3)[0]
    assert seconds["contiguous"] > 1.2 * seconds["zigzag"], seconds


# 20 -------------------------------------------------------------------------------------------------------------------

def test_slices_lie_where_they_are_in_the_model():
    drawn = re.findall(r'data-way="([\w ]+)" data-rank="(\d)" data-start="([\d.]+)"', cut_nodes(2, 3).svg)
    assert [(way, int(rank), round(float(start) * 6)) for way, rank, start in drawn] == [
        *(("one group", rank, rank) for rank in range(6)), *(("hybrid", rank, 2 * (rank % 3)) for rank in range(6))]
    with pytest.raises(BadInput, match="room for 4 of 8"):
        cut_nodes(5, 2)


def test_the_cable_carried_what_the_formulas_say():
    """In Ψ of bf16, from a node; and a step takes less time the less it sends."""
    kept = recorded()
    wire = {name: each["wire"] / (2 * each["params"]) for name, each in kept.items()}
    formula = {"stage 3": 3, "hybrid": 1, "ZeRO++": 3 / 8}
    assert all(wire[name] == pytest.approx(each, rel=0.05) for name, each in formula.items())
    assert min(kept, key=lambda name: kept[name]["seconds"]) == "ZeRO++" and max(kept, key=lambda name: kept[name]["seconds"]) == "stage 3"
    picture = true_sizes({"hybrid": {"held": 8, "forward": 0, "backward": 0, "gradients": 1, "wire": wire["hybrid"]}})
    assert "a node sends 0 Ψ in the forward, 0 Ψ in the backward, 1 Ψ for the gradients, measured 1.00 Ψ" in picture.text
    assert re.findall(r'data-part="(\w+)"', picture.svg) == ["gradients"]
