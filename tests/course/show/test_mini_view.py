"""Mini beside the stages proper: every name is there, every difference has its reason, both codes are shown."""

import re
from html import unescape

import pytest

from zerocourse.course.show.cells import sources
from zerocourse.course.show.mini_view import DIFFERENCES, mini_beside
from zerocourse.errors import BadInput
from zerocourse.zero import mini

ROWS = [row for rows in DIFFERENCES.values() for row in rows]


def test_every_name_is_there():
    missing = []
    for row in ROWS:
        for kind, name in (("mini", row.mini), ("real", row.real)):
            try:
                getattr(row, f"{kind}_code")
            except (AttributeError, ImportError):
                missing.append(f"{kind} {name} of {row.what!r}")
    assert not missing, f"mini_view names what is not there: {', '.join(missing)}"


def test_topics_and_reasons():
    assert list(DIFFERENCES) == [0, 1, 2, 3, "units", "optimizer"]
    for row in ROWS:
        assert re.fullmatch(r"[A-Z][^.!?]+( so | because )[^!?]+\.", row.why) and ". " not in row.why, row.what
    named = [row.what for row in ROWS]
    assert len(set(named)) == len(named)


def test_every_stage_is_compared():
    for stage, of_mini in enumerate(mini.STAGES):
        assert any(row.mini.startswith(f"{of_mini.__name__}.") for row in DIFFERENCES[stage]), f"stage {stage}"


@pytest.mark.parametrize("topic", DIFFERENCES)
def test_both_codes_are_shown(topic):
    shown = mini_beside(topic)
    words = unescape(re.sub(r"<[^>]+>", "", shown.html))
    for row in DIFFERENCES[topic]:
        for text in (shown.text, words):
            assert row.what in text and row.why in text
            for code in filter(None, (row.mini_code, row.real_code)):
                assert sources.code_of(code) in text and f"{sources.file_of(code)}: {code.__qualname__}" in text
    alone = sum(not row.mini for row in DIFFERENCES[topic])
    assert shown.html.count("not in mini") == shown.text.count("# not in mini") == alone
    assert shown._repr_mimebundle_()[0].keys() == {"text/plain", "text/html"}


@pytest.mark.parametrize("topic", (4, -1, "unit", True, None))
def test_topics_there_are_not(topic):
    with pytest.raises(BadInput, match="it must be one of 0, 1, 2, 3, 'units', 'optimizer'"):
        mini_beside(topic)
