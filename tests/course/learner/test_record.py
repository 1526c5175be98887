"""What the course remembers of a learner: nothing is lost to two processes, to half a line, or to a line of another."""

import json
import subprocess
import sys

import numpy
import pytest
import torch

from zerocourse.course.learner import record
from zerocourse.course.learner.folder import MARK, VARIABLE, learner_folder
from zerocourse.course.learner.record import FILE, answer_hash, events, remember
from zerocourse.errors import BadInput

ROUNDS = 300
APPENDS = f"""
import sys
from zerocourse.course.learner.record import remember
print("ready", flush=True)
sys.stdin.readline()
for number in range({ROUNDS}):
    remember("prediction", sys.argv[1], guess=number, note="x" * 1000)
"""


def test_the_folder_is_the_nearest_with_the_mark_or_the_one_that_is_named(folder, monkeypatch):
    deep, other = folder / "notebooks" / "more", folder / "other"
    deep.mkdir(parents=True)
    other.mkdir()
    monkeypatch.chdir(deep)
    assert learner_folder() == folder
    monkeypatch.setenv(VARIABLE, str(other))
    assert learner_folder() == other
    monkeypatch.setenv(VARIABLE, str(folder / "typo"))
    with pytest.raises(BadInput, match="typo, which is no folder"):
        learner_folder()


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    remember("verdict", "5.1", passed=True)
    assert learner_folder() is None and list(tmp_path.iterdir()) == []


def test_events_come_back_in_order_with_numbers_of_numpy_and_torch(folder):
    remember("prediction", "01.total", guess=12.5, unit="GB", quantity="bytes")
    remember("measured", "01.total", value=numpy.float32(16), ratio=torch.tensor(0.75), curve=numpy.arange(3))
    first, second = events(folder)
    assert first["kind"] == "prediction" and first["id"] == "01.total" and first["guess"] == 12.5 and first["unit"] == "GB"
    assert second["value"] == 16 and second["ratio"] == 0.75 and second["curve"] == [0, 1, 2]
    assert first["at"] <= second["at"]


def test_no_event_is_lost_when_two_processes_write_at_once(folder):
    writers = [subprocess.Popen([sys.executable, "-c", APPENDS, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for name in "ab"]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    found = [(event["id"], event["guess"]) for event in events(folder)]
    assert [id for id, _ in found] != ["a"] * ROUNDS + ["b"] * ROUNDS and len(found) == 2 * ROUNDS
    for name in "ab":
        assert [guess for id, guess in found if id == name] == list(range(ROUNDS))


def test_what_another_process_appends_just_before_a_write_is_not_overwritten(folder, monkeypatch):
    remember("verdict", "5.1", passed=True)
    looked = record._byte

    def looked_while_another_wrote(file, place):
        with open(folder / MARK / FILE, "ab") as other:
            other.write(b'{"kind": "verdict", "id": "another"}\n')
        return looked(file, place)

    monkeypatch.setattr(record, "_byte", looked_while_another_wrote)
    remember("verdict", "5.2", passed=False)
    assert [event["id"] for event in events(folder)] == ["5.1", "another", "5.2"]


@pytest.mark.parametrize("torn", [b'{"kind": "verdict", "id": "5.', b"\xff\xfe\x00", b"[1, 2]\n", b'{"id": "5.1"}\n', b"\n\n", b"null\n",
                                  b"[" * 100_000])
def test_a_torn_or_foreign_line_loses_nothing_else(folder, torn):
    remember("verdict", "5.1", passed=True)
    with open(folder / MARK / FILE, "ab") as file:
        file.write(torn)
    remember("verdict", "5.2", passed=False)
    remember("verdict", "5.3", passed=True)
    assert [event["id"] for event in events(folder)] == ["5.1", "5.2", "5.3"]


def test_what_cannot_be_remembered_is_a_warning(folder, monkeypatch):
    (folder / MARK / FILE).mkdir()
    with pytest.warns(UserWarning, match="your progress is not remembered: .*directory"):
        remember("verdict", "5.1", passed=True)
    monkeypatch.setenv(VARIABLE, str(folder / "typo"))
    with pytest.warns(UserWarning, match="which is no folder"):
        remember("verdict", "5.1", passed=True)


def test_a_full_disk_is_said(folder, monkeypatch):
    monkeypatch.setattr(record.os, "write", lambda file, line: len(line) // 2)
    with pytest.warns(UserWarning, match="is the disk full"):
        remember("verdict", "5.1", passed=True)


def test_without_a_record_there_are_no_events(folder):
    assert events(folder) == []


def test_every_line_is_json(folder):
    remember("best", "4.8", value=1024)
    line, = (folder / MARK / FILE).read_text().splitlines()
    assert json.loads(line)["value"] == 1024


def test_the_hash_is_of_the_source_without_the_space_around_it():
    assert answer_hash(["def f():\n    pass\n"]) == answer_hash(["\ndef f():\n    pass"]) != answer_hash(["def f():\n    return"])
