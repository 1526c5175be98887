"""A figure's alternative text is read from what is drawn in it."""

import pytest

from zerocourse.course.show.alternative_text import described
from zerocourse.course.show.figures import panels, stacked_rows
from zerocourse.course.show.plots_curves import curves


def test_lines_are_read_from_end_to_end():
    figure = curves({"rises": [1, 2, 30], "dips": [3, 0.5, 2000]}, [1, 10, 4096], "A title", "ranks", "GB", limit={"a card": 8})
    assert figure.get_label() == ("A title. GB, over ranks from 1 to 4,096: rises goes from 1 to 30; "
                                  "dips goes from 3 to 2,000, at least 0.5. marked: a card.")
    assert "from 1.0 % to 3.0 %, at most 4.0 %." in curves({"a": [1, 4, 3]}, [0.25, 1, 2], "t", "x", "y", say="{:.1f} %".format).get_label()


def test_points_and_lines_without_a_name():
    figure, (alone, both) = panels(4, 3, 1, 2)
    alone.plot([0, 1], [5, 4])
    alone.set_title("left", loc="left")
    both.plot([0, 1], [1, 2], label="named")
    both.plot([0, 1], [7, 8])  # stands in no legend, and has no gid
    both.plot([3, 4], [1, 1], "o", linestyle="none", label="skipped")
    both.axvline(3)
    both.axvline(4, gid="the\nend")
    both.set(xlabel="step")
    assert described(figure).get_label() == ("left. from 0 to 1: goes from 5 to 4. "
                                             "over step from 0 to 1: named goes from 1 to 2. marked: skipped at 3, 4; the end.")


@pytest.mark.parametrize("across", (True, False))
def test_bars_are_read_row_by_row_with_the_words_beside_them(across):
    figure, axes = panels(4, 3)
    draw, start = (axes.barh, "left") if across else (axes.bar, "bottom")
    draw(["one", "two"], [1.0, 2.0], label="held")
    last = draw(["one", "two"], [4.0, 1500.0], **{start: [1.0, 2.0]}, label="sent")
    axes.annotate("fits", (7, 1) if across else (1, 7))
    axes.text(0, 0, "no annotation")
    axes.bar_label(last, ["5.0", "7.0"])  # the bars say the same
    axes.set(title="A title", xlabel="x in MB", ylabel="y in MB")
    figure.suptitle("Above.")
    words = f"Above. A title. {'xy'[not across]} in MB: one: held 1, sent 4; two: fits (held 2, sent 1,500). So it is."
    assert described(figure, "So it is", "").get_label() == words


def test_a_bar_without_a_name_leaves_its_value_to_the_words_beside_it():
    figure, axes = panels(4, 3)
    axes.barh(["one", "two"], [36.0, 9.0])
    axes.annotate(" 36 MB, does not fit", (36, 0))
    assert described(figure).get_label() == "one: 36 MB, does not fit; two: 9."


def test_rows_are_stacked_and_lettered():
    figure, axes = panels(4, 3)
    rows = {"a": {"parameters": 2.0, "gradients": 0.1}, "b": {"parameters": 1.0, "gradients": 3.0}}
    assert stacked_rows(axes, rows, {"parameters": {}, "gradients": {"hatch": "//"}}, lettered=0.5) == [2.1, 4.0]
    assert [text.get_text() for text in axes.texts] == ["P 2", "P 1", "G 3"]
    assert [bar.get_x() for bar in axes.patches] == [0, 0, 2, 1] and axes.get_ylim() == (1.5, -0.5)
    assert described(figure).get_label() == "a: parameters 2, gradients 0.1; b: parameters 1, gradients 3."
