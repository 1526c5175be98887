"""Every bug of the museum shows itself, in real processes, and goes again; and without it all is right."""

from functools import cache

import pytest

from zerocourse.course.museum import BUGS, planted, proof
from zerocourse.course.museum.scene import Played, Scene, play, play_expert, play_whole
from zerocourse.errors import BadInput

SHOWN = [bug.name for bug in BUGS if bug.scene]


def with_and_without(names: list[str]) -> list[tuple[Played, Played]]:
    """On this rank: each bug's scene with the bug, and then without."""
    return [(play(BUGS[name].scene, BUGS[name]), play(BUGS[name].scene)) for name in names]


@pytest.fixture(scope="module")
def played(pool):
    """By bug: what the ranks saw with it, and what they saw without it."""
    by_rank = pool(2).run(with_and_without, SHOWN)
    return {name: list(zip(*runs, strict=True)) for name, runs in zip(SHOWN, zip(*by_rank, strict=True), strict=True)}


@cache
def whole(scene: Scene) -> Played:
    return play_whole(scene)


@pytest.mark.parametrize("name", SHOWN)
def test_a_bug_shows_and_without_it_all_is_right(played, name):
    bug = BUGS[name]
    with_bug, without = played[name]
    with pytest.raises(AssertionError):
        bug.proof(with_bug, whole(bug.scene), bug.scene)
    for check in (proof.gradient_is_the_unsharded_one, proof.losses_are_the_unsharded_ones, proof.bytes_are_the_formulas,
                  proof.all_is_finite, bug.proof):
        if not (bug.scene.half and check is not bug.proof):  # bf16 is not near fp32
            check(without, whole(bug.scene), bug.scene)


def test_a_hang_says_where_the_ranks_were(pool):
    assert [played["error"] for played in pool(2).run(play_expert)] == [None, None]


@pytest.mark.ranks_may_differ
def test_a_branch_around_a_collective_hangs(pool):
    first, second = pool(2).run(play_expert, BUGS["owner_only"])
    assert "rank 0 was in all_gather of root[0]" in first["error"] and "rank 1 was in reduce_scatter of root[1]" in first["error"]
    assert first["calls"] != second["calls"]
