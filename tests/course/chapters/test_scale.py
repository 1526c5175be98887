"""Chapter 25: what is recorded of simulated ranks, the figures that are drawn from it, and the bug that two ranks do not show."""


import pytest

from zerocourse.cli import main
from zerocourse.course.chapters.scale import plots_scale, scale_study
from zerocourse.course.chapters.scale.scale_bug import REMAINDER
from zerocourse.errors import BadInput
from zerocourse.formulas.states import model_states, paper_table1
from zerocourse.formulas.units import gb
from zerocourse.simulation import SimulatedJob, simulate

STAGES = 1, 2, 3


@pytest.mark.parametrize("job, cluster", ((scale_study.table_job("llama-7b", 3, 64), None),
                                          (scale_study.timed_job(32, scale_study.NODE), scale_study.CLUSTER)))
def test_what_is_recorded_is_simulated_again(job, cluster):
    """To the byte, and where there is a clock to the last bit. Red after a change to stages or clusters: record it again."""
    assert scale_study.simulated(job, cluster) == scale_study.recorded(job, cluster)


def test_all_jobs_are_recorded_and_no_other_is():
    assert all(scale_study.recorded(*at)["params"] for at in scale_study.jobs())
    with pytest.raises(BadInput, match="is not among the .* jobs that are recorded: simulate it"):
        scale_study.recorded(scale_study.table_job("llama-7b", 3, 63))


@pytest.mark.parametrize("name", scale_study.TABLE)
def test_every_cell_of_table_1_is_the_formulas(name):
    """The simulated cells have no padding, so they are equal. The printed ones are rounded, or cut off."""
    for ranks, printed in zip(scale_study.TABLE_RANKS, scale_study.PRINTED[name], strict=True):
        for stage, text, exact in zip(STAGES, printed.split(" / "), paper_table1()[ranks][name], strict=True):
            result = scale_study.recorded(scale_study.table_job(scale_study.TABLE[name], stage, ranks))
            assert result["total_bytes"] == model_states(result["params"], stage, ranks).total_bytes
            assert abs(float(text) - exact / 1e9) <= max(0.875, 0.024 * exact / 1e9), (ranks, stage)


def test_recording_goes_on_where_it_stopped(tmp_path, monkeypatch):
    jobs = [(SimulatedJob("gpt2-tiny", ranks=ranks), None) for ranks in (2, 3, 4)]
    monkeypatch.setattr(scale_study.kept, "file", tmp_path / "kept.json")
    monkeypatch.setattr(scale_study, "jobs", lambda: iter(jobs))
    asked = []
    monkeypatch.setattr(scale_study, "simulated", lambda job, cluster: asked.append(job.ranks) or {"params": job.ranks})
    scale_study.record({jobs[1]: {"params": 30}})
    rows = scale_study.kept()
    assert asked == [2, 4] and [row["result"]["params"] for row in rows] == [2, 30, 4]
    assert rows[0]["job"] == {"model": "gpt2-tiny", "ranks": 2}, "defaults are left out"


def test_the_parts_of_a_peak_are_all_of_it():
    for recompute in (False, True):
        for ranks in scale_study.GROWTH_RANKS:
            result = scale_study.recorded(scale_study.growth_job(ranks, recompute))
            parts = plots_scale.parts_of_peak(result)
            assert sum(parts.values()) == result["peak_bytes"] and min(parts.values()) >= 0
            assert abs(parts[plots_scale.SLICES] * ranks - 14 * result["params"]) < 16 * ranks


def test_a_hybrid_of_many_nodes_sends_a_slice_of_the_gradients_between_them():
    for ranks in scale_study.TIMED_RANKS:
        result = scale_study.recorded(scale_study.timed_job(ranks, scale_study.NODE), scale_study.CLUSTER)
        nodes = ranks // scale_study.NODE
        assert result["replicas_bytes"] == 2 * 2 * result["params"] // scale_study.NODE * (nodes - 1) // nodes
        assert result["total_bytes"] == 16 * result["params"] // scale_study.NODE


@pytest.mark.parametrize("ranks", scale_study.TIMED_RANKS[1:])
def test_a_hybrid_takes_little_longer_than_what_nothing_can_shorten(ranks):
    """Within 5 %: no step is shorter than its computing, nor than what its links carry."""
    result = scale_study.recorded(scale_study.timed_job(ranks, scale_study.NODE), scale_study.CLUSTER)
    assert result["step_seconds"] <= 1.05 * max(result["compute_seconds"], result["wire_seconds"])


def test_figures_say_what_they_show():
    jobs = {f"stage {stage}": scale_study.recorded(scale_study.table_job("llama-7b", stage, 64)) for stage in STAGES}
    expected = {name: result["total_bytes"] for name, result in jobs.items()}
    words = plots_scale.states_by_stage(jobs, expected, "64 ranks").get_label()
    assert "stage 3: 1.68 GB (parameters" in words and words.endswith("stage 3 1.68 GB.")
    peaks = {ranks: scale_study.recorded(scale_study.growth_job(ranks)) for ranks in (1, 4096)}
    words = plots_scale.peaks_over_ranks({"plain": peaks}, {1: 10**11, 4096: 3 * 10**7}).get_label()
    first, last = (gb(result["peak_bytes"]) for result in peaks.values())
    assert f"plain: {first} on 1 rank, {last} on 4,096" in words and "to 30.0 MB" in words
    times = {8: {"compute_seconds": 1.0, "exposed_seconds": 0.5}}
    figure = plots_scale.seconds_over_ranks({"one": times, "two": times}, "A step")
    assert "two: 1.50 s on 8 ranks, in 0.50 s of which it stands still" in figure.get_label()
    assert [text.get_text() for text in figure.axes[0].texts].count("1.50") == 2


def test_the_remainder_is_seen_on_thousands_of_ranks_alone():
    def held(ranks, rank):
        return simulate(SimulatedJob("gpt2-tiny", ranks=ranks, rank=rank, seq=8), "nccl")["total_bytes"]

    fair = held(2, 0)
    with REMAINDER.planted():
        assert held(2, 0) == held(2, 1) == fair
        assert held(4096, 0) > 50 * held(4096, 4095)
    assert held(4096, 0) < 1.2 * 16 * 224640 / 4096


def test_the_command_simulates_a_hybrid(capsys):
    assert main(["simulate", "--model", "gpt2-tiny", "--ranks", "8", "--shard-ranks", "4"]) == 0
    assert "of it 225 kB to replicas in other groups" in capsys.readouterr().out
    assert main(["simulate", "--model", "gpt2-tiny", "--ranks", "8", "--shard-ranks", "3"]) == 2
    assert "shard_ranks is 3" in capsys.readouterr().err
