"""What was measured once is kept as JSON beside its module, laid out so that versions can be compared."""

import importlib
import json
from pathlib import Path

import pytest

import zerocourse.course
from zerocourse.measure.recorded import WIDE, Recorded, laid_out

COURSE = Path(zerocourse.course.__file__).parent


def test_what_is_measured_again_is_kept(tmp_path):
    recorded = Recorded(str(tmp_path / "a_trial.py"), "a_result", iter([{"losses": [3.5, 2]}, {"losses": [1]}]).__next__)
    for losses in ([3.5, 2], [1]):
        recorded.renew()
        assert recorded() == {"losses": losses} == json.loads((tmp_path / "a_result.json").read_text())
    recorded.keep([{1: "x"}])
    assert recorded.file.read_text() == '[{"1": "x"}]\n'


def test_long_entries_have_lines_of_their_own():
    row = {"name": "x" * (WIDE // 2), "at": [1, 2]}
    assert laid_out([row, row]).splitlines() == ["[", json.dumps(row) + ",", json.dumps(row), "]"]
    assert laid_out({1: [row, row], "é": {}}).splitlines() == ['{', '"1": [', json.dumps(row) + ",", json.dumps(row), '],', '"\\u00e9": {}', "}"]
    assert json.loads(laid_out({"a": "x" * 2 * WIDE})) == {"a": "x" * 2 * WIDE}


@pytest.mark.parametrize("file", sorted(COURSE.rglob("recorded_*.json")), ids=lambda file: file.stem)
def test_every_file_is_read_by_a_module_beside_it(file):
    readers = [path for path in file.parent.glob("*.py") if f'Recorded(__file__, "{file.stem}"' in path.read_text()]
    assert len(readers) == 1
    module = importlib.import_module(".".join(readers[0].relative_to(COURSE.parents[1]).with_suffix("").parts))
    kept = next(value for value in vars(module).values() if isinstance(value, Recorded) and value.file == file)
    assert laid_out(kept()) + "\n" == file.read_text()
