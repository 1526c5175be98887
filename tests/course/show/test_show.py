"""What cells show: each form is right, says the same, and is there without ipywidgets too."""

import asyncio
import base64
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from zerocourse.comm.events import Recorder
from zerocourse.course import show
from zerocourse.course.chapters.data_parallel.plots_classics import staleness_figure
from zerocourse.course.chapters.engine.live_loss import LiveLoss
from zerocourse.course.show import plots, widgets
from zerocourse.course.show.cells import sources
from zerocourse.course.show.palette import MEANINGS
from zerocourse.course.show.plots_curves import STYLES, curves
from zerocourse.errors import BadInput, UntrueSentence
from zerocourse.formulas.states import model_states
from zerocourse.launch import launch, machine, progress
from zerocourse.zero.ddp import DataParallel
from zerocourse.zero.stage1 import Stage1
from zerocourse.zero.stage2 import Stage2
from zerocourse.zero.stage3 import Stage3

STAGES = [DataParallel, Stage1, Stage2, Stage3]


def words(html: str) -> str:
    """The text of some HTML, with its spaces as they are."""
    import html as entities
    return entities.unescape(re.sub(r"<[^>]+>", "", html))


# show

def test_a_figure_has_its_words_in_every_form():
    shown = show.figure(Figure(figsize=(1, 1)), alt="Nothing at all is drawn here")
    data, about = shown._repr_mimebundle_()
    found = re.fullmatch(r'<div style="overflow-x:auto"><img src="data:image/png;base64,(.*)" alt="(.*)" width="100" '
                         r'style="max-width:100%; min-width:85px; height:auto"></div>',
                         data["text/html"])
    picture = base64.b64decode(found[1])
    assert picture.startswith(b"\x89PNG") and b"Nothing at all is drawn here" in picture
    assert b"matplotlib" not in picture, "a version would change the file"
    assert data["text/plain"] == found[2] == str(shown) == "Nothing at all is drawn here" and not about
    assert "image/png" not in data, "which has no alternative text in JupyterLab and nbconvert"
    with pytest.raises(BadInput, match="say in a sentence"):
        show.figure(Figure(), alt="figure")


def test_a_table_in_text_and_html():
    shown = show.table([{"rank": 0, "who": "me", "held": 1234567, "as": "1.23 MB"},
                        {"rank": 1, "who": "<you>", "held": 5, "as": "5 B"}])
    assert shown.text.splitlines() == ["rank  who         held       as", "----  -----  ---------  -------",
                                       "   0  me     1,234,567  1.23 MB", "   1  <you>          5      5 B"]
    assert "&lt;you&gt;" in shown.html and "<you>" not in shown.html
    assert shown.html.count("text-align:right") == 9  # three of four columns, in three rows
    for rows in ([], [{"a": 1}, {"b": 1}]):
        with pytest.raises(BadInput, match="same keys"):
            show.table(rows)


def test_source_is_the_file_s_own_text():
    shown = show.source(Stage2)
    heading, code = shown.text.split("\n\n", 1)
    assert heading == "# zerocourse/zero/stage2.py: Stage2"
    assert code in (sources.ROOT / "zerocourse" / "zero" / "stage2.py").read_text()
    assert code in words(shown.html)


@pytest.mark.parametrize("before, after", list(pairwise(STAGES)), ids=lambda stage: stage.__name__)
def test_a_difference_names_all_that_a_stage_defines(before, after):
    shown = show.difference(before, after)
    named = {name.split(".")[0] for name, _, _ in sources.changes(before, after)}
    assert named == {name for name in vars(after) if not name.startswith("__") or name == "__init__"}
    for name, _old, new in sources.changes(before, after):
        assert name in shown.text and name in words(shown.html)
        if callable(new):
            lost = [line for line in sources.code_of(new).splitlines() if line not in words(shown.html)]
            assert not lost, f"the code of {name}"


def test_a_difference_of_one_verb():
    shown = show.difference(Stage1, Stage2, only=["ops.reduce"])
    assert re.search(r"^ops.reduce +reduce_scatter_in_place +reduce_scatter_and_free$", shown.text, re.M)
    assert re.search(r"^shards_gradients +False +True$", shown.text, re.M)
    assert "\n--- zerocourse/zero/stage1.py\n+++ zerocourse/zero/stage2.py\n" in shown.text
    assert "\n+def reduce_scatter_and_free(" in shown.text and "\n-def reduce_scatter_in_place(" in shown.text
    assert shown.html.count("</th></tr>") == 2, "the table, and one pair of sources"
    with pytest.raises(BadInput, match="does not change forward of Stage1; it changes .*ops.reduce"):
        show.difference(Stage1, Stage2, only=["forward"])


def test_of_a_difference_the_rows_that_matter_are_open():
    shown = show.difference(Stage2, Stage3, rows=["shards_parameters", "ops.reshard"], only=[])
    opened, folded = shown.html.split("<details>")
    assert re.findall(r"<td[^>]*>([\w.]+)</td><td", opened) == ["shards_parameters", "ops.reshard"]
    others = [name for name, _, _ in sources.changes(Stage2, Stage3)
              if name not in ("shards_parameters", "ops.reshard")]
    assert f"<summary>{len(others)} more that change</summary>" in folded
    assert all(f">{name}</td>" in folded and name in shown.text for name in others)
    with pytest.raises(BadInput, match="does not change nothing_of_it"):
        show.difference(Stage2, Stage3, rows=["nothing_of_it"])


def test_words_say_the_numbers_of_their_cell():
    shown = show.says("**{n:,}** bytes, {share:.0%} of {what}", n=1234567, share=0.25, what="all")
    assert str(shown) == "**1,234,567** bytes, 25% of all"
    assert shown._repr_mimebundle_()[0] == {"text/plain": str(shown), "text/markdown": str(shown)}
    for values in ({}, {"n": 1, "m": 2}):
        with pytest.raises(BadInput, match="give each name one value"):
            show.says("{n} bytes", **values)


def test_a_sentence_that_must_be_so_is_said():
    stage1, stage2 = 5, 3
    shown = show.says("{held} bytes are less", held=stage2, must=stage2 < stage1 and all(stage2 < each for each in (4, 5)))
    assert str(shown) == str(show.says("{held} bytes are less", held=stage2)) == "3 bytes are less"


def test_a_sentence_that_is_not_so_is_refused_with_what_it_compared():
    held, same = {"stage 1": 5, "stage 2": 7}, False
    with pytest.raises(UntrueSentence) as refused:
        show.says("{n} bytes\nare less", n=held["stage 2"],
                  must=held["stage 1"] == 5 and held["stage 2"] < min(held.values()) and same)
    assert str(refused.value) == ("this sentence is not true of the numbers of its cell: “7 bytes are less” `held['stage 2'] < "
                                  "min(held.values())` is not so: `held['stage 2']` is 7, `min(held.values())` is 5")
    with pytest.raises(UntrueSentence, match="`same or not held` is not so: `same` is False, `held` is {'stage 1': 5"):
        show.says("They are the same.", must=same or not held)
    with pytest.raises(UntrueSentence, match="“They are the same.” its `must` is not so$"):
        exec("show.says('They are the same.', must=1 > 2)")  # there is no source


def test_side_by_side_marks_only_what_differs():
    html = sources.side_by_side(["a = 1", "b = 2", "c = 3"], ["a = 1", "c = 3", "d = 4"], "old", "new")
    cells = re.findall(r"<pre[^>]*>(.*?)</pre>", html, re.S)
    assert [words(cell).strip() for cell in cells] == ["a = 1", "a = 1", "− b = 2", "", "c = 3", "c = 3", "", "+ d = 4"]
    assert [sources.REMOVED in cell for cell in cells].index(True) == 2 and html.count(sources.REMOVED) == 1
    assert [sources.ADDED in cell for cell in cells].index(True) == 7 and html.count(sources.ADDED) == 1


def test_code_has_colours_of_its_own_and_is_not_broken_inside_words():
    """JupyterLab's dark theme makes <code> white, and its narrow pages break it anywhere, unless the element itself says else."""
    for shown, breaks in ((show.source(words), "white-space:pre"), (show.difference(Stage1, Stage2), sources.AT_SPACES)):
        styles = re.findall(r'<pre style="([^"]*)"><code style="([^"]*)">', shown.html)
        assert styles and all("color:#222222" in outer and "color:#222222" in inner for outer, inner in styles)
        assert all(outer.endswith(breaks) and inner.endswith(breaks) and "overflow-x:auto" in outer for outer, inner in styles)


def test_the_staleness_figure_says_where_its_curves_end():
    shown = show.figure(staleness_figure({0: [0.5, 1e-3], 4: [0.5, 20.0]}))
    assert "0 updates old goes from 0.5 to 0.001; 4 updates old goes from 0.5 to 20." in shown.text
    lines = staleness_figure({0: [0.5, 1e-3], 1: [0.5, 0.1]}).axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 2, "the curves are told apart without colour"


# plots of explorers

def test_cards():
    assert plots.smallest_card(1) == "T4" and plots.smallest_card(16 * 2**30) == "RTX 4090"
    assert plots.smallest_card(10**12) is None


@pytest.mark.parametrize("params, stage, ranks", [(7 * 10**9, 3, 8), (10**12, 3, 1024), (124_439_808, 0, 1)])
def test_memory_on_cards_draws_what_the_formulas_say(params, stage, ranks):
    states = [model_states(params, each, ranks) for each in range(4)]
    axes = plots.memory_on_cards(states, stage).axes[0]
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    drawn = ends[2::3]  # where the third of the stacked kinds ends
    assert ends[0::3] == pytest.approx([each.parameters_bytes / 1e9 for each in states])
    assert drawn == pytest.approx([each.total_bytes / 1e9 for each in states])
    assert axes.get_xlim()[1] > drawn[stage]


def step() -> list[dict]:
    recorder = Recorder()
    for verb in ("all_gather", "forward", "reshard", "step"):
        with recorder.span(verb, "h.0", 1000):
            pass
    return recorder.of_step(0)


def test_live_bytes_draws_each_curve_in_the_order_of_time():
    events = [event | {"alive": alive} for event, alive in zip(step(), (5_000_000, 7_000_000, 4_000_000, 0))]
    axes = plots.live_bytes({"a": events[::-1], "b": events[:1]}, "title", "MB").axes[0]
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[5, 7, 4, 0], [5]]


def test_live_bytes_gives_a_forward_the_left_half():
    events = [{"verb": verb, "start": begin, "end": begin + 1, "alive": 1}
              for begin, verb in enumerate(("forward",) * 3 + ("wait", "backward", "backward"))]
    axes = plots.live_bytes({"a": events, "b": events[2:]}, "title", "MB").axes[0]
    assert [line.get_xdata().tolist() for line in axes.get_lines()[::2]] == [pytest.approx([0, 0.125, 0.25, 0.375, 0.5, 1]), [0, 0.25, 0.5, 1]]


def test_a_timeline_says_the_highest_and_the_last():
    events = [event | {"alive": alive} for event, alive in zip(step(), (5_000_000, 7_000_000, 4_000_000, 3_000_000))]
    assert re.findall(r'font-weight="bold"[^>]*>([\d.]+)<', plots.timeline(events).svg) == ["7.0", "3.0"]


# widgets

@pytest.fixture
def boxes(monkeypatch):
    """The widgets that `explore` makes, by name."""
    made, box = {}, widgets.Control.box
    monkeypatch.setattr(widgets.Control, "box", lambda self, name: made.setdefault(name, box(self, name)))
    return made


def test_an_explorer_shows_at_once_and_follows_its_controls(boxes, capsys):
    widgets.explore(lambda n: Figure(figsize=(1, 1)), lambda n: f"this is figure number {n}",
                    n=widgets.Control([1, 2, 3], 2))
    assert capsys.readouterr().out.count("this is figure number 2") == 2  # the sentence, and the picture's words
    boxes["n"].value = 3
    assert capsys.readouterr().out.count("this is figure number 3") == 2


def test_an_explorer_says_what_cannot_be(boxes, capsys):
    def describe(n):
        if n == 3:
            raise BadInput("three is too many")
        return f"this is figure number {n}"

    widgets.explore(lambda n: Figure(figsize=(1, 1)), describe, n=widgets.Control([2, 3], 2))
    boxes["n"].value = 3
    assert "three is too many" in capsys.readouterr().out


def test_the_memory_explorer_has_the_formulas_numbers(boxes, capsys):
    widgets.memory(params=7 * 10**9, stage=0, ranks=8)
    assert "each of 8 ranks holds 112 GB of model states; one H200 has room for that" in capsys.readouterr().out
    boxes["stage"].value = 3
    assert "ZeRO-3: each of 8 ranks holds 14.0 GB of model states; one T4" in capsys.readouterr().out
    boxes["dtype"].value, boxes["optimizer"].value = "fp32", "SGD"
    assert "fp32 SGD, ZeRO-3: each of 8 ranks holds 7.00 GB" in capsys.readouterr().out


def test_a_step_is_looked_at_event_by_event():
    events = [event | {"alive": alive} for event, alive in zip(step(), (5_000_000, 7_000_000, 7_000_000, 3_000_000))]
    film = plots.step_film(events, "one step")
    assert len(film.frames) == 4 and film.start == 1 and list(film.shown) == [1], "the peak"
    assert re.search("rank 0 ends forward of h.0.*; 7.00 MB are alive", film.frames[1].caption)
    assert re.search(r"rank 0 ends all_gather of h.0, 1.00 kB", film.frames[0].caption)
    places = [float(re.search(r'<line x1="([\d.]+)"', "".join(frame.drawing.parts))[1]) for frame in film.frames]
    assert places == sorted(places) and len(set(places)) == len({event["end"] for event in events}), "the cursor moves on"


def test_while_a_slider_moves_pictures_are_coarse_and_only_the_last_is_sharp():
    drawn = []

    async def dragged():
        moved = widgets.sharp_when_quiet(drawn.append)
        for _ in range(5):
            moved()
            await asyncio.sleep(0)
        await asyncio.sleep(2 * widgets.QUIET)

    asyncio.run(dragged())
    assert drawn == [widgets.COARSE] * 5 + [widgets.SHARP]
    widgets.sharp_when_quiet(drawn.append)()  # where no event loop runs
    assert drawn[6:] == [widgets.SHARP]


def test_a_control_refuses_a_start_that_is_none_of_its_values():
    with pytest.raises(BadInput, match="starts at 5"):
        widgets.Control([1, 2], 5)


def test_without_ipywidgets_there_is_the_picture_and_a_sentence():
    code = ("import sys; sys.modules['ipywidgets'] = None\n"
            "from zerocourse.course.show import widgets; widgets.memory(params=7 * 10**9, stage=3, ranks=8)")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    first, *rest = ended.stdout.splitlines()
    assert first == widgets.MISSING and len(rest) == 2 and all("14.0 GB" in line for line in rest)


# machine

def test_this_machine_is_good_enough_for_its_own_tests():
    rows = machine.report()
    assert [row["what"] for row in rows] == ["Python", "PyTorch", "processors", "memory", "ipywidgets"]
    assert all(row["found"] for row in rows)
    assert all(row["verdict"].startswith("good") for row in rows[:3])
    show.table(rows)


# curves

def test_curves_are_told_apart_without_colour_and_say_where_they_go():
    drawn = curves({"stage 1": [16, 4], "stage 3": [16, 1]}, [1, 64], "A model", "ranks", "GB per rank", log=True,
                   limit={"a card": 8})
    first, second, limit = drawn.axes[0].lines
    assert first.get_marker() != second.get_marker() and first.get_linestyle() != second.get_linestyle()
    assert list(limit.get_ydata()) == [8, 8]
    assert [tick.get_text() for tick in drawn.axes[0].get_xticklabels()] == ["1", "64"]
    alt = show.figure(drawn).text
    assert "GB per rank, over ranks from 1 to 64" in alt and "stage 3 goes from 16 to 1." in alt


def test_curves_take_no_colour_that_means_a_kind_of_memory():
    assert not {color for color, _, _ in STYLES} & {meaning.color for meaning in MEANINGS.values()}


# a loss as it goes

def says_its_loss():
    for step in range(1, 4):
        print(f"step {step}: loss {4 - step}.5")
        progress(step, 3, loss=10 * step)
    print("{'loss': '1e-1', 'epoch': '2'}\n{'eval_loss': '7.0'}")


def test_a_live_loss_draws_lines_or_progress_and_prints_the_rest(capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr("IPython.display.DisplayHandle.display", lambda handle, shown: drawn.append(shown.text))
    monkeypatch.setattr("IPython.display.DisplayHandle.update", lambda handle, shown: drawn.append(shown.text))
    said = LiveLoss()
    with LiveLoss("Of lines") as lines:
        launch(says_its_loss, nproc=1, echo=lines.line, progress=said.progress)
        lines.line("[1] loss 9.0")  # of another rank
    assert lines.losses == {1: 3.5, 2: 2.5, 3: 1.5, 4: 0.1}
    assert said.losses[3] == 30 and "Of lines. loss (nats per token), over step from 1 to 4: goes from 3.5 to 0.1." == drawn[-1]
    assert capsys.readouterr().out == "[0] {'eval_loss': '7.0'}\n"
