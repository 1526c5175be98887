"""Every bug of the museum shows itself, in real processes, and goes again; and without it all is right."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch.nn.functional as F

from zerocourse.course.chapters.activations import activation_trial
from zerocourse.course.chapters.checkpoints import resumes
from zerocourse.course.chapters.mixed_precision.fp16_run import train_fp16
from zerocourse.course.chapters.one_cluster import planted_factors
from zerocourse.course.chapters.scale import scale_bug
from zerocourse.course.chapters.slow_links.stale_copy import STALE_COPY
from zerocourse.course.museum import BUGS, planted, proof
from zerocourse.course.museum.breaks import Break
from zerocourse.course.museum.cases import CASES, case, solved
from zerocourse.course.museum.clinic import NAMES
from zerocourse.course.museum.scene import Played, Scene, batch, model_of, play, play_expert, play_whole
from zerocourse.errors import BadInput
from zerocourse.zero.ddp import all_reduce

SHOWN = [bug.name for bug in BUGS if bug.scene]
NUMBERED = [bug.name for bug in BUGS if bug.number]


def with_and_without(names: list[str]) -> tuple[dict[str, Played], dict[Scene, Played]]:
    """On this rank: every bug in its scene, and every scene without a bug."""
    scenes = dict.fromkeys(BUGS[name].scene for name in names)
    return {name: play(BUGS[name].scene, BUGS[name]) for name in names}, {scene: play(scene) for scene in scenes}


@pytest.fixture(scope="module")
def played(pool):
    """By bug, and by scene: what each rank saw."""
    by_rank = pool(2).run(with_and_without, SHOWN)
    return [{key: [of_rank[key] for of_rank in ranks] for key in ranks[0]} for ranks in zip(*by_rank, strict=True)]


@cache
def whole(scene: Scene) -> Played:
    return play_whole(scene)


@pytest.mark.parametrize("name", SHOWN)
def test_a_bug_shows_and_without_it_all_is_right(played, name):
    bug = BUGS[name]
    with_bug, without = played[0][name], played[1][bug.scene]
    with pytest.raises(AssertionError):
        bug.proof(with_bug, whole(bug.scene), bug.scene)
    near = (proof.gradient_is_the_unsharded_one, proof.losses_are_the_unsharded_ones)
    for check in (*(() if bug.scene.half else near), proof.bytes_are_the_formulas, proof.all_is_finite, bug.proof):
        check(without, whole(bug.scene), bug.scene)


def numbers(names: list[str]) -> dict[str, tuple[float, float]]:
    return {name: BUGS[name].measured() for name in names}


def test_numbers_are_right_without_their_bugs_and_wrong_with_them(pool):
    for seen in pool(2).run(numbers, NUMBERED):
        for name, (without, with_bug) in seen.items():
            assert without == pytest.approx(BUGS[name].right, abs=1e-4) and abs(with_bug - without) > 0.01, name
        assert seen["experts_by_edp"][1] == pytest.approx(2), "the number of ranks of a group"
        assert seen["factor_of_one"][1] == pytest.approx(1 / 128)
        assert seen["last_step_count"][1] == pytest.approx(0.47, abs=0.01)
        assert (seen["zero_is_no_stop"][1], seen["end_not_learned"][1]) == (8, 0)


def test_every_bug_shows_in_one_way():
    assert all((bug.scene is None) == (bug.proof is None) and not (bug.scene and bug.number) for bug in BUGS)
    hangs = [bug.name for bug in BUGS if not bug.scene and not bug.number]
    assert hangs == ["owner_only", "own_overflow"] and len(NUMBERED) == 11


def test_every_target_counts():
    """The loss is the mean over all targets, also where they are all token 0."""
    model, (tokens, targets) = model_of(Scene()), batch(Scene(padded=(0, 0)), 0, 0, 0)
    expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    assert not targets.any() and model(tokens, targets).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("bug", list(BUGS), ids=lambda bug: bug.name)
def test_a_bug_names_a_test_that_is_there(bug):
    file, _, name = bug.test.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[2] / file).read_text()
    assert all(before != after for _, before, after in bug.sources())


def test_a_bug_goes_again_also_after_an_exception():
    code = all_reduce.__code__
    with pytest.raises(ZeroDivisionError), planted("weights_reduced"):
        assert all_reduce.__code__ is not code
        raise ZeroDivisionError
    assert all_reduce.__code__ is code
    with planted("weights_reduced"):  # so it may come back
        pass


def test_what_cannot_be_planted_is_said():
    with pytest.raises(BadInput, match="no bug 'sumed': did you mean 'summed'"):
        planted("sumed")
    with planted("summed"), pytest.raises(BadInput, match=r"GradientBuffer\.\w+ has a bug already"), planted("late_micro_batch"):
        pass
    outdated = replace(BUGS["summed"], changes=(Break("zero.ddp:all_reduce", "while.test", "False"),))
    with pytest.raises(ValueError, match="'zero.ddp:all_reduce' has no place 'while.test': at 'while' nothing is left"):
        list(outdated.sources())


def test_a_traceback_shows_the_planted_line():
    bug = replace(BUGS["summed"], changes=(Break("zero.ddp:all_reduce", "own=", "1 / 0\n{old}"),))
    with bug.planted(), pytest.raises(ZeroDivisionError) as caught:
        all_reduce(None, None)
    assert "1 / 0" in str(caught.traceback[-1].statement)


def test_without_the_branch_nothing_hangs(pool):
    assert [played["error"] for played in pool(2).run(play_expert)] == [None, None]


@pytest.mark.ranks_may_differ
def test_a_branch_around_a_collective_hangs(pool):
    first, second = pool(2).run(play_expert, BUGS["owner_only"])
    assert "rank 0 was in all_gather of root[0]" in first["error"]
    assert "rank 1 was in reduce_scatter of root[1]" in first["error"]
    assert first["calls"] != second["calls"]


def test_an_overflow_in_one_slice_is_skipped_by_all(pool):
    """The infinite gradient lies in the last rank's slice alone."""
    for seen in pool(2).run(train_fp16, 5, 4, overflows=(2,)):
        assert seen.error is None and seen.skipped == [step == 2 for step in range(5)]
        assert seen.scales == [16, 16, 16, 8, 8] and seen.updates == [1, 2, 2, 3, 4]


@pytest.mark.ranks_may_differ
def test_an_overflow_that_each_rank_decides_hangs(pool):
    first, second = pool(2).run(train_fp16, 5, 4, overflows=(2,), bug=BUGS["own_overflow"], seconds=1.0)
    assert (first.skipped, second.skipped) == ([False] * 2, [False, False, True])
    assert "rank 0 was in all_gather of " in first.error and "rank 1 was in " in first.error


def test_the_cases_are_bugs_and_their_answers_are_told():
    assert len({*CASES, *NAMES}) == len(CASES) + len(NAMES) == 20, "a patient of the clinic was met before"
    for number, name in enumerate(CASES, 1):
        told = solved(number, folded="The answer")
        assert case(number).name == name and name in told.text and "<summary>The answer</summary>" in told.html
        assert case(number).test in told.text and "\n+" in told.text


def test_bugs_of_single_chapters_still_have_their_lines():
    """Those that are in no museum: a chapter that plants one would fail."""
    for bug in (resumes.SAME_RANDOM_STATES, scale_bug.REMAINDER, activation_trial.OTHER_MASKS, activation_trial.NOT_GATHERED_AGAIN,
                STALE_COPY, planted_factors.COUNTED_TWICE, *planted_factors.FACTORS.values()):
        assert list(bug.sources())
