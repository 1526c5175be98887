"""Rank maps and layouts: every element has one owner, whatever the shapes and however many the ranks."""

import base64
import functools
import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from zerocourse.errors import BadInput
from zerocourse.layout.rankmap import MAPS, Layout, contiguous, greedy, owners, round_robin
from zerocourse.measure.drawn.balance import Balance
from zerocourse.models.gpt2 import build_model

sizes = st.lists(st.lists(st.integers(0, 7), max_size=3), max_size=9)  # [] is 0-d, a zero in it is an empty tensor
shapes = sizes.map(lambda found: {f"p{index}": torch.Size(shape) for index, shape in enumerate(found)})
world_sizes = st.integers(1, 9)
maps = st.sampled_from([None, *MAPS])
TWO = {"a": (3, 2), "b": (4,)}


def build(shapes, world_size, rank_map=None) -> Layout:
    return Layout.build(shapes, world_size, owners(rank_map, shapes, world_size))


# --- layouts ---

@given(shapes, world_sizes, maps)
@example({}, 3, None)
@example({"scalar": torch.Size([]), "none": torch.Size([0, 4])}, 5, "greedy")
def test_every_element_in_exactly_one_slice(shapes, world_size, rank_map):
    layout = build(shapes, world_size, rank_map)
    times = {name: [0] * math.prod(shape) for name, shape in shapes.items()}
    for rank in range(world_size):
        own = layout.slice(rank)
        pieces = layout.shard_ranges(own)
        for piece in pieces:
            assert 0 <= piece.start < piece.stop <= math.prod(shapes[piece.name])
            for element in range(piece.start, piece.stop):
                times[piece.name][element] += 1
        assert sum(piece.stop - piece.start for piece in pieces) == layout.real(rank)
    assert all(count == 1 for counts in times.values() for count in counts)
    assert sum(map(layout.real, range(world_size))) == layout.numel == sum(map(math.prod, shapes.values()))


@given(shapes, world_sizes, maps)
def test_a_piece_lies_where_it_says(shapes, world_size, rank_map):
    """Number all elements, lay them in the row, cut it, and find every piece's numbers at its place in the slice."""
    layout, values, row, number = build(shapes, world_size, rank_map), {}, None, 0
    row = torch.full((layout.padded,), -1)
    for name, shape in shapes.items():
        values[name] = torch.arange(number, number + math.prod(shape))
        number += math.prod(shape)
        row[layout.param_slice(name)] = values[name]
    assert sorted(row.tolist()) == [-1] * (layout.padded - layout.numel) + list(range(number))
    for rank in range(world_size):
        mine, at = row[layout.slice(rank)], 0
        for piece in layout.shard_ranges(layout.slice(rank)):
            assert piece.at == at, "pieces follow each other without gaps"
            at += piece.stop - piece.start
            assert mine[piece.at : at].tolist() == values[piece.name][piece.start : piece.stop].tolist()
        assert set(mine[at:].tolist()) <= {-1}, "what is left of a slice is padding"


@given(shapes, world_sizes)
def test_flat_slices_are_equal_and_padding_is_less_than_one_a_rank(shapes, world_size):
    layout = build(shapes, world_size)
    slices = [layout.slice(rank) for rank in range(world_size)]
    assert {each.stop - each.start for each in slices} == {math.ceil(layout.numel / world_size)}
    assert 0 <= layout.padded - layout.numel < world_size
    assert list(layout.shapes) == list(shapes), "the order is the model's"


@given(shapes, world_sizes, st.sampled_from(sorted(MAPS)))
def test_owner_maps_keep_tensors_whole_and_have_no_padding(shapes, world_size, rank_map):
    owner, layout = owners(rank_map, shapes, world_size), build(shapes, world_size, rank_map)
    assert layout.padded == layout.numel
    for rank in range(world_size):
        found = {piece.name: (piece.start, piece.stop) for piece in layout.shard_ranges(layout.slice(rank))}
        theirs = {name: math.prod(shape) for name, shape in shapes.items() if owner[name] == rank}
        assert found == {name: (0, size) for name, size in theirs.items() if size}
        assert layout.real(rank) == sum(theirs.values())


def test_more_ranks_than_elements_leave_ranks_empty():
    flat = build({"a": (3,)}, 5)
    assert [flat.real(rank) for rank in range(5)] == [1, 1, 1, 0, 0] and flat.padded == 5
    whole = build(TWO, 4, "greedy")
    assert whole.bounds == (0, 6, 10, 10, 10)
    gap = Layout.build(TWO, 4, {"a": 3, "b": 1})
    assert gap.bounds == (0, 0, 4, 4, 10) and list(gap.shapes) == ["b", "a"]


# --- maps ---

@given(shapes, world_sizes)
def test_what_each_map_promises(shapes, world_size):
    size = {name: math.prod(shape) for name, shape in shapes.items()}
    assert list(round_robin(shapes, world_size).values()) == [index % world_size for index in range(len(shapes))]
    runs = list(contiguous(shapes, world_size).values())
    assert runs == sorted(runs), "neighbours stay together"
    for each in (contiguous, greedy):
        found = each(shapes, world_size)
        load = [sum(size[name] for name in shapes if found[name] == rank) for rank in range(world_size)]
        largest, mean = max(size.values(), default=0), sum(size.values()) / world_size
        # Graham 1966 for greedy; a contiguous share begins and ends at most half a tensor outside its N-th.
        assert max(load) <= mean + largest, f"{each.__name__} is further from even than its largest tensor"


def test_contiguous_goes_by_the_middle_of_a_tensor():
    assert contiguous({"a": (3,), "b": (4,), "c": (1,)}, 2) == {"a": 0, "b": 1, "c": 1}
    assert contiguous({"a": (1,), "b": (4,), "c": (3,)}, 2) == {"a": 0, "b": 0, "c": 1}
    even = {f"p{index}": (1,) for index in range(1000)}
    assert [list(contiguous(even, 8).values()).count(rank) for rank in range(8)] == [125] * 8
    half = 2**60 - 1  # floats cannot tell b's middle, half an element before it, from it
    assert contiguous({"a": (half - 1,), "b": (1,), "c": (half,)}, 2) == {"a": 0, "b": 0, "c": 1}


def test_ties_go_to_the_lowest_rank_and_the_first_tensor():
    assert greedy({"a": (2,), "b": (2,), "c": (2,), "d": (4,)}, 3) == {"d": 0, "a": 1, "b": 2, "c": 1}
    assert greedy({"a": (2,), "b": (2,)}, 2) == {"a": 0, "b": 1}


@pytest.mark.parametrize("answer, words", [
    (lambda shapes, n: {"a": 0, "b": n}, ["'b'", "rank 2", "from 0 to 1"]),
    (lambda shapes, n: {"a": -1, "b": 0}, ["'a'", "rank -1"]),
    (lambda shapes, n: {"a": True, "b": 0}, ["'a'", "rank True", "integer"]),
    (lambda shapes, n: {"a": 0, "b": 1.0}, ["'b'", "rank 1.0", "integer"]),
    (lambda shapes, n: {"a": 0, "b": None}, ["'b'", "rank None"]),
    (lambda shapes, n: {"a": 0}, ["dropped", "'b'"]),
    (lambda shapes, n: {"a": 0, "b": 1, "c": 1}, ["'c'", "not a parameter"]),
    (lambda shapes, n: {"a": 0, "c": 1}, ["'c'", "not a parameter"]),
    (lambda shapes, n: None, ["NoneType", "dictionary"]),
    (lambda shapes, n: [0, 1], ["list", "dictionary"]),
    ("gredy", ["'gredy'", "flat", "greedy", "round_robin"]),
    (7, ["int", "function"]),
    ({"a": 0, "b": 1}, ["dict", "function"]),
])
def test_a_bad_map_is_refused_in_a_sentence(answer, words):
    with pytest.raises(BadInput) as refused:
        owners(answer, TWO, 2)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("world_size", [0, -1, True, 2.0])
@pytest.mark.parametrize("rank_map", [None, "greedy"])
def test_a_bad_world_size_is_refused(world_size, rank_map):
    with pytest.raises(BadInput, match="world_size"):
        Balance.build(TWO, world_size, rank_map)


def test_a_map_may_answer_with_what_argmin_gives_and_may_spoil_its_argument():
    found = owners(lambda shapes, n: {"b": np.int64(1), "a": torch.tensor(0)}, TWO, 2)
    assert found == {"a": 0, "b": 1} and {type(rank) for rank in found.values()} == {int}
    assert list(found) == ["a", "b"], "in the model's order, whatever the map's"
    given = dict(TWO)
    owners(lambda shapes, n: {shapes.popitem()[0]: 0 for _ in range(2)}, given, 2)
    assert given == TWO


# --- plans ---

@functools.cache
def gpt2(size: str, bias: bool = True) -> dict:
    with torch.device("meta"):
        model = build_model(size, bias=bias)
    return {name: param.shape for name, param in model.named_parameters()}


@pytest.mark.parametrize("size, bias, rank_map, world_size, imbalance", [
    ("gpt2-xl", True, "round_robin", 2, 1.997), ("gpt2-xl", True, "round_robin", 8, 2.62),
    ("gpt2-xl", False, "round_robin", 2, 1.21), ("gpt2-xl", False, "round_robin", 8, 2.94),
    ("gpt2-xl", True, "greedy", 8, 1.00), ("gpt2", True, "greedy", 2, 1.00),
    ("gpt2", True, "greedy", 4, 1.24), ("gpt2", True, "greedy", 8, 2.48),
    ("gpt2", True, None, 4, 1.00), ("gpt2", True, "flat", 8, 1.00), ("gpt2-xl", True, None, 8, 1.00),
])
def test_published_imbalances(size, bias, rank_map, world_size, imbalance):
    """max/mean of GPT-2 with a tied head, as the course states it."""
    digits = len(str(imbalance).partition(".")[2])
    assert round(Balance.build(gpt2(size, bias), world_size, rank_map).imbalance, max(2, digits)) == imbalance


def test_all_but_one_matrix_of_xl_on_one_rank():
    """Weights and biases take turns, so that even numbers are matrices: `param_id % 2` puts all but `wpe` on rank 0."""
    owner = owners("round_robin", gpt2("gpt2-xl"), 2)
    assert [name for name, shape in gpt2("gpt2-xl").items() if len(shape) == 2 and owner[name] == 1] == ["wpe.weight"]


def test_the_name_of_a_plan():
    def mine(shapes, world_size):
        return dict.fromkeys(shapes, 0)

    class Balanced:
        __call__ = staticmethod(mine)

    names = {"flat": None, "greedy": "greedy", "round_robin": round_robin, "mine": functools.partial(mine),
             "Balanced": Balanced()}
    assert [Balance.build(TWO, 2, rank_map).name for rank_map in names.values()] == list(names)
    assert str(Balance.build(TWO, 2, mine)).splitlines() == [
        "mine: 2 ranks, max/mean 2.000", "  rank 0:            10", "  rank 1:             0"]
    assert Balance.build({}, 2).imbalance == Balance.build({"a": (0,)}, 2, "greedy").imbalance == 1.0


SVG = "{http://www.w3.org/2000/svg}"
CHARACTER = 8  # pixels: more than a digit, letter or comma of "rank 15" and "1,557,611,200" takes on average at size 14


def drawn(balance: Balance) -> tuple[list[dict], ElementTree.Element]:
    """The boxes (left, right, top, bottom) of bars and labels, the background and the title line apart."""
    picture, boxes = ElementTree.fromstring(balance.svg()), []
    for mark in picture.iter():
        if mark.tag == f"{SVG}rect" and mark.get("width") != "100%":
            x, y, width, height = (float(mark.get(key)) for key in ("x", "y", "width", "height"))
            said = mark.find(f"{SVG}title").text
            boxes.append({"kind": "bar", "x": (x, x + width), "y": (y, y + height), "of": said})
        if mark.tag == f"{SVG}text" and mark.get("text-anchor") == "middle":  # the name of a cell, inside of it
            x, half = float(mark.get("x")), 0.5 * 7 * len(mark.text)
            assert any(bar["x"][0] < x - half and x + half < bar["x"][1] for bar in boxes if mark.text in bar["of"]), mark.text
        elif mark.tag == f"{SVG}text":
            x, y = float(mark.get("x")), float(mark.get("y"))
            kind = "title" if mark.text.startswith(balance.name) else "label"
            end = x + CHARACTER * len(mark.text)
            boxes.append({"kind": kind, "x": (x, end), "y": (y - 12, y + 4), "of": mark.text})
    return boxes, picture


def test_it_shows_itself_as_an_image_with_words():
    balance = Balance.build(TWO, 2)
    data = balance._repr_mimebundle_()
    encoded, alt = re.search(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', data["text/html"]).groups()
    assert encoded == data["image/png"] and base64.b64decode(encoded).startswith(b"\x89PNG") and alt == str(balance)


def overlap(one: dict, other: dict, room: float = 0.02) -> bool:  # coordinates are written with two digits
    return all(one[axis][0] < other[axis][1] - room and other[axis][0] < one[axis][1] - room for axis in "xy")


def test_pictures_that_are_compared_have_one_scale():
    """An element is as wide with every map, when both pictures are told what the full width stands for."""
    shapes, per_element = {"a": (60,), "b": (30,), "c": (30,)}, set()
    for rank_map in ("flat", "round_robin"):
        balance = Balance.build(shapes, 2, rank_map, widest=90)
        bars = [box["x"] for box in drawn(balance)[0] if box["kind"] == "bar"]
        per_element.add(round(sum(right - left for left, right in bars) / 120, 2))
    assert len(per_element) == 1


@pytest.mark.parametrize("size", ["gpt2-tiny", "gpt2-xl"])
@pytest.mark.parametrize("rank_map", [None, *MAPS])
@pytest.mark.parametrize("world_size", [2, 3, 7, 16])
def test_the_picture_is_legible(size, rank_map, world_size):
    balance = Balance.build(gpt2(size), world_size, rank_map)
    boxes, picture = drawn(balance)
    kinds = {kind: [box for box in boxes if box["kind"] == kind] for kind in ("bar", "label", "title")}
    assert len(kinds["title"]) == 1 and len(kinds["label"]) == 2 * world_size
    canvas = {"x": (0, float(picture.get("width"))), "y": (0, float(picture.get("height")))}
    for box in boxes:
        inside = (canvas[axis][0] <= box[axis][0] and box[axis][1] <= canvas[axis][1] for axis in "xy")
        assert all(inside), f"{box} is cut off"
    for label in kinds["label"] + kinds["title"]:
        for other in boxes:
            assert other is label or not overlap(label, other), f"{label} covers {other}"
    for row in {bar["y"] for bar in kinds["bar"]}:
        bars = sorted((bar for bar in kinds["bar"] if bar["y"] == row), key=lambda bar: bar["x"])
        assert not any(overlap(one, other) for one, other in pairwise(bars))
    widths = sum(bar["x"][1] - bar["x"][0] for bar in kinds["bar"])
    longest = max(bar["x"][1] for bar in kinds["bar"]) - min(bar["x"][0] for bar in kinds["bar"])
    assert widths / longest == pytest.approx(world_size / balance.imbalance, rel=0.02), "bars are as long as shares"


def test_the_picture_is_xml_whatever_the_names():
    odd = {'a<b>&"c': (3,), "plain": (2,), "empty": (0,), "scalar": ()}
    boxes, picture = drawn(Balance.build(odd, 2, lambda shapes, world_size: dict.fromkeys(shapes, 1)))
    assert 'a<b>&"c[0:3], 3 elements' in [box["of"] for box in boxes]
    assert picture.find(f"{SVG}title").text.startswith("<lambda>: parameters per rank, max/mean 2.00")
    ElementTree.fromstring(Balance.build({}, 3).svg())
