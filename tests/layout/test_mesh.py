"""The mesh: coordinates and ranks are each other's inverse, groups are disjoint and cover the world, in any order of axes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerocourse.errors import BadInput
from zerocourse.layout.mesh import BETWEEN, BOTH, INSIDE, ORDERS, Mesh

NAMES = ("pp", "dp", "cp", "ep", "tp")
meshes = st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
    lambda sizes: st.permutations(NAMES).map(lambda names: dict(zip(names, sizes, strict=False))))


@given(meshes)
def test_coordinates_and_ranks_are_each_others_inverse(sizes):
    mesh = Mesh(sizes)
    places = [mesh.coordinates(rank) for rank in range(mesh.world_size)]
    assert [mesh.rank(**place) for place in places] == list(range(mesh.world_size))
    assert all(0 <= place[axis] < sizes[axis] for place in places for axis in sizes)


@given(meshes, st.data())
def test_groups_are_disjoint_cover_the_world_and_differ_in_their_axes_alone(sizes, data):
    mesh = Mesh(sizes)
    axes = data.draw(st.lists(st.sampled_from(list(sizes)), unique=True))
    groups = mesh.groups(*axes)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
    for group in groups:
        assert group == sorted(group) and len(group) == math.prod(sizes[axis] for axis in axes)
        assert all(mesh.group_of(rank, *axes) == group for rank in group)
        fixed = [{axis: at for axis, at in mesh.coordinates(rank).items() if axis not in axes} for rank in group]
        assert fixed == fixed[:1] * len(group)


def test_megatrons_formula():
    """rank = tp + TP · (dp + DP · pp), and neighbours share the last axis."""
    mesh = Mesh.ordered("megatron", {"tp": 4, "dp": 3, "pp": 2}, per_node=4)
    for rank in range(24):
        at = mesh.coordinates(rank)
        assert rank == at["tp"] + 4 * (at["dp"] + 3 * at["pp"])
    assert mesh.groups("tp")[0] == [0, 1, 2, 3] and mesh.groups("dp")[0] == [0, 4, 8] and mesh.groups("pp")[1] == [1, 13]
    assert mesh.link("tp") == INSIDE and mesh.link("dp") == mesh.link("pp") == BETWEEN
    assert Mesh({"dp": 4, "tp": 2}, per_node=4).link("dp") == BOTH
    assert Mesh({"dp": 3, "tp": 2}, per_node=3).link("tp") == BOTH, "the second of three groups lies in two nodes"


SLOWEST_FIRST = {"megatron": "pp dp cp tp", "deepspeed": "pp dp tp", "torchtitan": "pp dp_replicate dp_shard cp tp",
                 "nanotron": "ep pp dp cp tp", "picotron": "dp pp cp tp"}


@pytest.mark.parametrize("system", ORDERS)
def test_each_system_places_its_ranks_in_its_own_order(system):
    """And in all of them tensor-parallel ranks are neighbours, which share a node."""
    axes = SLOWEST_FIRST[system].split()
    sizes = dict(zip(axes, (2, 3, 2, 3, 2)))
    mesh = Mesh.ordered(system, sizes, per_node=sizes["tp"])
    for rank in range(mesh.world_size):
        at, place = mesh.coordinates(rank), 0
        for axis in axes:
            place = place * sizes[axis] + at[axis]
        assert place == rank
    assert all(ranks == list(range(ranks[0], ranks[0] + sizes["tp"])) for ranks in mesh.groups("tp"))
    assert mesh.link("tp") == INSIDE and {mesh.link(axis) for axis in axes[:-1]} == {BETWEEN}


def test_the_same_numbers_make_other_neighbours_in_another_system():
    ours, theirs = (Mesh.ordered(system, {"dp": 2, "pp": 2}) for system in ("megatron", "picotron"))
    assert ours.groups("dp") == theirs.groups("pp") == [[0, 1], [2, 3]]
    assert all({"pp", "tp"} <= set(axes) for axes in ORDERS.values())


def test_a_rank_is_named_with_its_coordinates():
    assert Mesh({"pp": 2, "dp": 2, "tp": 2}).name(5) == "rank 5 (pp 1, dp 0, tp 1)"


@pytest.mark.parametrize("wrong, sentence", (
    (lambda: Mesh({}), "a mesh needs an axis at least"),
    (lambda: Mesh({"dp": 0}), "axis 'dp' of the mesh is 0: it must be an integer of at least 1"),
    (lambda: Mesh({"dp": 2}).coordinates(2), "rank is 2: it must be an integer from 0 to 1"),
    (lambda: Mesh({"dp": 2}).groups("tp"), "the mesh has no axis 'tp': it has dp"),
    (lambda: Mesh({"dp": 2}).rank(dp=2), "the coordinate dp is 2: it must be an integer from 0 to 1"),
    (lambda: Mesh.ordered("megatrom", {}), "there is no order 'megatrom': use megatron, deepspeed"),
    (lambda: Mesh.ordered("deepspeed", {"cp": 2}), "the order has no axis 'cp': it has pp, dp, tp"),
))
def test_what_is_no_mesh(wrong, sentence):
    with pytest.raises(BadInput, match=sentence):
        wrong()
