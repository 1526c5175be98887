"""The simulated folder finds what the package's own rule finds, and the film shows it."""

import json

import pytest

from zerocourse.course.chapters.checkpoints.agent_film import agent_film
from zerocourse.course.chapters.checkpoints.checks.cells_commit import commit_order
from zerocourse.course.chapters.checkpoints.commit_disk import CommitDisk, commit_film, states_of
from zerocourse.engine.checkpoint.folders import checkpoint_folder as folders


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_right_order_has_the_old_state_and_then_the_new_one(ranks):
    states = states_of(commit_order(ranks), ranks)
    assert states == ["old"] * (2 * ranks + 2) + ["new"] * 4
    film = commit_film(commit_order(ranks), ranks)
    assert [state in frame.caption for state, frame in zip(states, film.frames, strict=True)] == [True] * len(states)


@pytest.mark.parametrize("order, found", [
    ([("index",), ("aside",)], "torn"), ([("write", 0), ("aside",)], "old"), ([("write", 0), ("sync", 0), ("aside",), ("rename",)], "nothing")])
def test_a_wrong_order_loses_something(order, found):
    assert states_of(order, 1)[-1] == found


@pytest.mark.parametrize("order", [[("rename",)], [("sync", 0)], [("write", 0), ("rename",)], [("burn",)]])
def test_the_disk_refuses(order):
    with pytest.raises(ValueError):
        states_of(order, 1)


def test_whom_the_package_reads_is_whom_the_simulation_reads(tmp_path):
    """Real folders, with an index each, in the states behind the operations that make names."""
    def there() -> dict[str, str]:
        return {path.name: json.loads((path / "state").read_text()) for path in tmp_path.iterdir()}

    for name, state in (("last", "old"), ("last.partial", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state").write_text(json.dumps(state))
        (tmp_path / name / folders.INDEX).touch()
    disk = CommitDisk(1)
    for each in commit_order(1)[:3]:
        disk.do(*each)
    for what, old, new in (("aside", "last", "last.replaced"), ("rename", "last.partial", "last")):
        disk.do(what)
        (tmp_path / old).rename(tmp_path / new)
        assert there()[folders.to_read(tmp_path / "last").name] == disk.read()


def test_the_film_of_an_agent_shows_who_is_ended():
    def rows(steps, pids):
        return [{"rank": rank, "pid": pid, "agent": 100, "step": step} for step in steps for rank, pid in enumerate(pids)]

    film = agent_film([{"ended": "rank 1 died (SIGKILL)", "rows": rows(range(1, 9), (101, 102))},
                       {"ended": "", "rows": rows(range(7, 19), (111, 112))}],
                      killed=1, saved_every=3)
    assert [frame.name for frame in film.frames] == ["Attempt 1", "A rank dies", "The others are ended", "Attempt 2", "The run is complete"]
    assert "after the checkpoint of step 6" in film.frames[3].caption
