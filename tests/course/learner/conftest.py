"""What the tests of a learner's folder share."""

import pytest

from zerocourse.course.learner.folder import MARK, VARIABLE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A learner's folder, in which the test is; a terminal of 80 columns."""
    (tmp_path / MARK).mkdir()
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path
