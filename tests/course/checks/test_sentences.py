"""What checks say stands in catalogues by language, a sentence a mistake; and how much code a check is."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
from code_tokens import tokens

import zerocourse.course.checks as checks
from zerocourse.course.chapters import TOPICS
from zerocourse.course.checks import check
from zerocourse.course.checks.catalogue import VARIABLE, read
from zerocourse.course.checks.exercise import _registered

ROOM = Path(checks.__file__).parents[1]
CATALOGUES = sorted(ROOM.rglob("sentences.*.toml"))
TOKENS = {1: 4_902, 2: 7_110, 3: 7_319, 4: 10_319, 5: 6_447, 6: 8_598, 7: 11_379, 8: 7_206, 9: 4_575, 10: 8_269,
          11: 5_610, 12: 6_550, 13: 6_623, 14: 4_823, 15: 5_825, 16: 6_508, 17: 6_112, 18: 5_331, 19: 5_418, 20: 6_512, 21: 4_692, 22: 5_603,
          23: 4_069, 24: 3_320, 25: 4_359, 26: 6_079}
# tokens of each chapter's checks: where they fall, write the smaller number here
WRITTEN_TOKENS = 1_600  # at most, of the checks of a chapter's own cells, which are not counted above

CHECK = '''
from zerocourse.course.checks.exercise import exercise
from zerocourse.course.checks.trace import Trial

def observed(answer, size):
    """What is seen."""
    return {"sum": answer(size), "_twice": 2 * size}

@exercise("99.8", "Made up", minutes=5, difficulty=1, answer="made_up", trials=[Trial([(1,)], observed)],
          mistakes={"one more": {"plus": 1}, "one less": {"plus": -1}})
def made_up(size, *, plus=0):
    """The size."""
    return size + plus
'''
SAID = '''
[observed]
case = "a size of {0}"
sum = "it has {got}, twice that is {_twice}"

[made_up]
"one more" = "You added one to {want}."
"one less" = "You took one from {want}."
right = "as it is."
'''


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A check of its own with its catalogue, imported from a folder."""
    monkeypatch.syspath_prepend(tmp_path)

    def made(said=SAID, **translations):
        (tmp_path / "made_up_check.py").write_text(CHECK)
        for language, text in {"en": said, **translations}.items():
            (tmp_path / f"sentences.{language.replace('_', '-')}.toml").write_text(text, encoding="utf-8")
        return importlib.import_module("made_up_check")

    yield made
    sys.modules.pop("made_up_check", None)
    _registered.pop("99.8", None)
    read.cache_clear()


def test_a_mistake_is_told_with_its_sentence_of_the_catalogue(made_up):
    made_up()
    assert check("99.8", lambda size: size + 1).message == "a size of 1: it has 2, twice that is 2. You added one to 1."
    assert check("99.8", lambda size: size).message == "as it is."


@pytest.mark.parametrize("old, new, words", [
    ('right = "as it is."\n', "", r"99.8: the catalogue has no sentence of made_up for \['right'\]"),
    ('"one more" = "You added one to {want}."\n', "", r"no sentence of made_up for \['one more'\]"),
    ("right =", 'plus = "What?"\nright =', r"99.8: the catalogue has sentences of made_up for \['plus'\], which is no mis"),
    ("one to {want}", "one to {wanted}", "99.8: nothing fills in {wanted} in what is said of made_up for 'one more'"),
    ("that is {_twice}", "that is {_thrice}", "99.8: nothing fills in {_thrice} in what is said of observed for 'sum'"),
])
def test_a_catalogue_that_does_not_fit_the_mistakes_is_refused(made_up, old, new, words):
    with pytest.raises(ValueError, match=words):
        made_up(SAID.replace(old, new))


def test_a_code_of_the_harness_names_no_mistake(made_up, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "CHECK", CHECK.replace("one less", "raised"))
    with pytest.raises(ValueError, match=r"99.8: \['raised'\] is a code of the harness itself"):
        made_up()


HALF = '[made_up]\n"one more" = "比 {want} 多了 1。"\n'


@pytest.mark.parametrize("language, one_more, one_less", [
    ("zh-CN", "比 1 多了 1。", "You took one from 1."), ("zh_CN.UTF-8", "比 1 多了 1。", "You took one from 1."),
    ("zh", "比 1 多了 1。", "You took one from 1."), ("xx", "You added one to 1.", "You took one from 1."),
    ("", "You added one to 1.", "You took one from 1."),
])
def test_what_a_language_lacks_is_said_in_english(made_up, monkeypatch, language, one_more, one_less):
    made_up(zh_CN=HALF)
    monkeypatch.setenv(VARIABLE, language)
    assert check("99.8", lambda size: size + 1).message.endswith(one_more)
    assert check("99.8", lambda size: size - 1).message.endswith(one_less)


def test_the_language_may_change_between_two_checks(made_up, monkeypatch):
    made_up(zh_CN='[made_up]\nright = "正确。"\n')
    said = []
    for language in ("zh-CN", "en"):
        monkeypatch.setenv(VARIABLE, language)
        said.append(check("99.8", lambda size: size).message)
    assert said == ["正确。", "as it is."]


@pytest.mark.parametrize("text", ['[made_up]\n"one moer" = "x"\n', '[unheard]\nright = "x"\n',
                                  '[made_up]\nright = "{wanted}"\n'])
def test_a_translation_of_what_is_not_said_is_refused(made_up, tmp_path, text):
    made_up(xx=text)
    with pytest.raises(ValueError, match="sentences.xx.toml: .* must translate a sentence of sentences.en.toml"):
        read(tmp_path, "xx")


@pytest.mark.parametrize("path", CATALOGUES, ids=[str(path.relative_to(ROOM)) for path in CATALOGUES])
def test_every_table_belongs_to_one_function_and_translates_english(path):
    defined = [line for file in path.parent.glob("*.py") for line in file.read_text().splitlines()
               if line.startswith(("def ", "class "))]
    for name in read(path.parent, path.name.split(".")[1]):
        assert sum(name in re.findall(r"\w+", line)[1:2] for line in defined) == 1, f"{path}: [{name}]"


@pytest.mark.parametrize("chapter", TOKENS)
def test_checks_do_not_grow(chapter):
    files = (ROOM / "chapters" / TOPICS[chapter] / "checks").glob("*.py")
    count = sum(tokens(path.read_text()) for path in files if not path.name.startswith("cells_"))
    assert count <= TOKENS[chapter], f"the checks of chapter {chapter:02} have grown to {count} tokens: make them smaller"
    assert count > 0.95 * TOKENS[chapter], f"the checks of chapter {chapter:02} have {count} tokens: write it down above"


@pytest.mark.parametrize("path", sorted(ROOM.rglob("cells_*.py")), ids=lambda path: path.stem)
def test_checks_of_what_a_chapter_asks_for_itself_are_small(path):
    assert tokens(path.read_text()) <= WRITTEN_TOKENS


def blank_return(params, stage, ranks):
    16 * params


@pytest.mark.parametrize("id, answer, said", [
    ("1.2", lambda params, stage, ranks: [16, 4, 2, 0][stage] * params + [0, 12, 14, 16][stage] * params // ranks,
     "`state_bytes(1601, 1, 4)`：返回了 11_207，应为 11_216。"),
    ("1.2", lambda params, stage, ranks: 16 * params // (ranks if stage == 3 else 1),
     "`state_bytes(7_500_000_000, 1, 64)`：返回了 120_000_000_000，应为 31_406_250_000。"),
    ("1.2", blank_return, "`state_bytes(7_500_000_000, 0, 64)`：返回了 None，应为 120_000_000_000：是不是忘了写 `return`？"),
    ("1.2", lambda params, stage, ranks: (0,),
     "`state_bytes(7_500_000_000, 0, 64)`：返回了 (0,)（类型是 tuple），应为 120_000_000_000。"),
    ("1.3", lambda card, stage, ranks: card * ranks // 16,
     ("`largest_model(32, 0, 2)`：返回了 4，应为 2。你在每个阶段都把 16 字节全部分摊给了各个 rank：只有阶段 3 才这样，之前的阶段里每个参数总有"
      "一部分要在每个 rank 上完整保存。")),
    ("1.5", lambda units, stage, ranks: [("start", 5)],
     "`timeline([(800, 5000), (1600, 7000), (400, 300)], 0, 2)`：列表里有 1 个事件，应有 11 个：最后一个是 'zero_grad'。"),
])
def test_a_whole_verdict_in_chinese(monkeypatch, id, answer, said):
    monkeypatch.setenv(VARIABLE, "zh-CN")
    assert check(id, answer).message == said


def test_chapter_01_is_translated_whole():
    folder = ROOM / "chapters" / "memory_math" / "checks"
    english, chinese = (tomllib.loads((folder / f"sentences.{language}.toml").read_text("utf-8")) for language in ("en", "zh-CN"))
    missing = {(name, code) for name, table in english.items() for code in table} - {
        (name, code) for name, table in chinese.items() for code in table}
    assert missing == {("followed", "case")}  # a call, and no words
