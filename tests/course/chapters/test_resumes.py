"""What chapter 12 is made of: Young's formula, the run that was recorded, and resumes with one part left out."""

import math

import pytest
import torch

from zerocourse.course.chapters.checkpoints import elastic_trial, resumes
from zerocourse.course.chapters.checkpoints.reshuffle import reshuffle
from zerocourse.errors import BadInput
from zerocourse.formulas.time.interruptions import best_interval, lost_share, mean_of_all
from zerocourse.zero.whole.weights import publish


@pytest.mark.parametrize("save, mean", [(1.0, 3600.0), (30.0, 10_000.0), (0.1, 10.0)])
def test_no_interval_loses_less_than_the_best(save, mean):
    best = best_interval(save, mean)
    others = [lost_share(best * factor, save, mean) for factor in (0.25, 0.5, 0.9, 1.1, 2, 4)]
    assert lost_share(best, save, mean) == pytest.approx(math.sqrt(2 * save / mean)) and min(others) > math.sqrt(2 * save / mean)


def test_more_parts_are_interrupted_more_often():
    assert mean_of_all(3600, 60) == 60
    with pytest.raises(BadInput, match="mean_seconds must be above 0"):
        best_interval(1, 0)


def test_the_recorded_run_has_the_losses_of_an_unhurt_one(pool):
    unhurt, losses = pool(2).run(elastic_trial.losses)[0], {}
    ranks = []
    for attempt in elastic_trial.recorded():
        ranks.append(attempt["rows"][0]["ranks"])
        losses |= {row["step"]: row["loss"] for row in attempt["rows"]}
    assert ranks == [2, 1, 2]
    assert [losses[step] for step in sorted(losses)] == pytest.approx(unhurt, abs=1e-4), "record it anew"


def gone_on(folder: str, without: str | None = None) -> list[float]:
    """The losses of steps 13 to 30 in a new run that loads the checkpoint. Collective.

    without: what of `resumes.PARTS` is treated as if it were not in the checkpoint.
    """
    training = resumes.begun()
    engine, fresh = training.engine, torch.get_rng_state()
    _, client = engine.load_checkpoint(folder, load_optimizer_states=without != "optimizer",
                                       load_lr_scheduler_states=without != "scheduler")
    if without == "random":
        torch.set_rng_state(fresh)
    if without == "masters":  # they begin anew, from the bf16 parameters
        for flat in engine.zero.flats:
            flat.master.copy_(flat.master.to(torch.bfloat16))
        publish(engine.zero)
    if without != "data":
        training.stream.load_state_dict(client["stream"])
    return training.steps(resumes.STEPS)


def test_only_a_resume_with_everything_has_the_same_bits(pool, tmp_path):
    two = pool(2)
    unhurt = two.run(resumes.never_stopped, str(tmp_path))[0][resumes.STOP:]
    assert two.run(gone_on, str(tmp_path))[0] == unhurt
    for part in ("scheduler", "masters"):
        got = two.run(gone_on, str(tmp_path), part)[0]
        assert got[0] == unhurt[0] and got[3:] != unhurt[3:], part


def test_what_three_ranks_read_is_the_whole_tensor_once(pool, tmp_path):
    pool(2).run(resumes.save_at, str(tmp_path), 3, False)
    source = resumes.source_of(str(tmp_path))
    moves = [move for rank, pieces in enumerate(pool(3).run(resumes.wanted, 3)) for piece in pieces
             for move in resumes.transfers(source.folder, *piece, rank) if move.tensor == "model/wte.weight"]
    size = source.index["tensors"]["model/wte.weight"]["size"][0]
    moves.sort(key=lambda move: move.start)
    assert [move.start for move in moves] == [0, *(move.stop for move in moves[:-1])] and moves[-1].stop == size
    drawn = reshuffle(moves, size, "wte.weight, saved by 2 ranks, loaded by 3")
    assert drawn.svg.count("data-bytes") == len(moves) == 4
