"""Pictures of cuts draw the cuts of a real model, and torch's tensor parallelism stands beside ours in its chapter."""

import re

import pytest
import torch
import torch.nn.functional as F

from zerocourse.comm import Comm
from zerocourse.course.chapters.tensor_parallel import two_ways
from zerocourse.course.chapters.tensor_parallel.checks.cells_borders import copy_in, reduce_out
from zerocourse.course.chapters.tensor_parallel.checks.cells_tokens import gather_in, scatter_out
from zerocourse.course.chapters.tensor_parallel.region_film import TOKENS, WIDTH, recorded_passes, region_film
from zerocourse.course.chapters.tensor_parallel.tensor_cut import CutWeight, cuts_of, taken_for, tensor_cut
from zerocourse.course.chapters.tensor_parallel.tensor_peer import PLANS, SplitGPT, torchs_collectives
from zerocourse.errors import BadInput
from zerocourse.models.gpt2 import GPT, GPTConfig
from zerocourse.parallel.tensor import tensor_parallel
from zerocourse.parallel.tensor.cuts import Cut

SHAPE = GPTConfig(2, 4, 16, block_size=8, vocab_size=32)
LAYERS = ("h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight")
BOX = re.compile(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"[^>]*data-name="(\S+)" data-rank="(\d+)" '
                 r'data-start="(\d+)" data-stop="(\d+)"')


def cuts(*names):
    return cuts_of(tensor_parallel(GPT(SHAPE), Comm()), names)


def test_every_piece_of_every_rank_is_drawn_where_it_lies_in_the_weight(pool):
    for ranks in (2, 4):
        on_each = pool(ranks).run(cuts, *LAYERS)
        assert all(found == on_each[0] for found in on_each), "any rank can draw it"
        boxes = BOX.findall(tensor_cut(on_each[0], ["attention"], parts="qkv").svg)
        assert len(boxes) == 3 * ranks + ranks
        for name, (out, inputs), cut in on_each[0]:
            pieces = sorted((int(start), int(stop), int(rank)) for *_, of, rank, start, stop in boxes if of == name)
            assert pieces == sorted((rows.start, rows.stop, rank) for rank in range(ranks) for rows in cut.by_rank[rank])
            assert [start for start, _, _ in pieces] == [0, *(stop for _, stop, _ in pieces[:-1])] and pieces[-1][1] == cut.size
            areas = [float(wide) * float(high) for _, _, wide, high, of, *_ in boxes if of == name]
            assert sum(areas) == pytest.approx(out * inputs * (224 / 48) ** 2, rel=1e-2), "all weights have one scale"
            along = sorted(float(box[1 - cut.dim]) for box in boxes if box[4] == name)
            assert len(set(along)) == len(pieces) and along[0] != along[-1]


def test_words_say_who_has_what(pool):
    drawn = tensor_cut(pool(2).run(cuts, *LAYERS)[0], ["attention"], parts="qkv")
    assert drawn.text == ("h.0.attn.c_attn.weight (48, 16): rank 0 has the rows 0 to 7, 16 to 23, 32 to 39; rank 1 has the rows "
                          "8 to 15, 24 to 31, 40 to 47. h.0.attn.c_proj.weight (16, 16): rank 0 has the columns 0 to 7; rank 1 "
                          "has the columns 8 to 15.")
    assert all(f">{part}, rank {rank}<" in drawn.svg for part in "qkv" for rank in (0, 1))
    assert drawn.svg.count("<circle") == 2 and ">f<" in drawn.svg and ">g<" in drawn.svg and ">attention<" in drawn.svg
    assert "<circle" not in tensor_cut(pool(2).run(cuts, *LAYERS)[0], ["attention"], borders=False).svg


def test_weights_share_one_scale():
    wide, tall = CutWeight("a.weight", (2, 4), Cut.even(0, 2, 2)), CutWeight("b.weight", (8, 4), Cut.even(1, 4, 2))
    boxes = BOX.findall(tensor_cut([wide, tall], [""]).svg)
    assert [(float(box[2]), float(box[3])) for box in boxes] == [(112, 28)] * 2 + [(56, 224)] * 2


def test_the_picture_ends_where_the_drawing_does():
    drawn = tensor_cut([CutWeight("a.weight", (4, 4), Cut.even(0, 4, 2))], borders=False).svg
    right = max(float(x) + float(wide) for x, _, wide, *_ in BOX.findall(drawn))
    assert right < float(re.search(r'viewBox="0 0 (\S+) ', drawn)[1]) < right + 10


def test_what_is_not_there_is_not_drawn():
    weight = CutWeight("w.weight", (4, 4), Cut.even(0, 4, 2))
    with pytest.raises(BadInput, match="0 weights and 0 words"):
        tensor_cut([])
    with pytest.raises(BadInput, match="2 weights and 0 words"):
        tensor_cut([weight, weight])
    with pytest.raises(BadInput, match="ln_f.weight is no matrix of this model that was cut"):
        cuts_of(tensor_parallel(GPT(SHAPE), Comm()), ["ln_f.weight"])


def torch_beside_one_process(name):
    torch.manual_seed(0)
    tokens, targets = torch.randint(SHAPE.vocab_size, (2, 2, 8))
    torch.manual_seed(1)
    found = torchs_collectives(SHAPE, tokens, targets, name)
    torch.manual_seed(1)
    return *found, F.cross_entropy(SplitGPT(SHAPE)(tokens).flatten(0, 1), targets.flatten()).item()


@pytest.mark.ranks_may_differ
@pytest.mark.parametrize("name, expected", [*zip(PLANS, ((17, 0, 0), (13, 0, 0), (3, 10, 10)), strict=True)])
def test_torch_computes_the_same_with_so_many_collectives(pool, name, expected):
    """Three for the loss. Else, in a block, one more all-reduce for each layer that has an f of its own."""
    for loss, kinds, alone in pool(2).run(torch_beside_one_process, name):
        assert loss == pytest.approx(alone, abs=1e-5)
        assert tuple(kinds.values()) == expected


# The film of a cut MLP ----------------------------------------------------------------------------------------------

ALL = TOKENS * WIDTH


def test_f_and_g_send_in_one_direction_each(pool):
    first, *others = pool(2).run(recorded_passes, copy_in, reduce_out)
    assert all(other == first for other in others)
    sent = {(passing.way, passing.stop): passing.sent for passing in first if passing.sent}
    assert sent == {("forward", "y"): ALL, ("backward", "x"): ALL}
    assert [passing.stop for passing in first] == ["x", "f(x)", "hidden", "term", "y", "y", "term", "hidden", "f(x)", "x"]


def test_with_cut_tokens_each_of_four_borders_sends_one_half(pool):
    passes = pool(2).run(recorded_passes, gather_in, scatter_out, True)
    sent = {(passing.way, passing.stop): passing.sent for passing in passes[0] if passing.sent}
    assert sent == dict.fromkeys([("forward", "f(x)"), ("forward", "y"), ("backward", "term"), ("backward", "x")], ALL // 2)
    assert {passing.shape[0] for passing in passes[0] if passing.stop in ("x", "y")} == {TOKENS // 2}
    film = region_film(passes, "With cut tokens")
    assert f"A rank sends {2 * ALL:,} elements in all." in film.words and len(film.frames) == 10


def test_what_was_recorded_says_what_the_chapter_says():
    kept = two_ways.recorded()
    assert [row["tokens"] for row in kept["rows"]] == [samples * two_ways.BLOCK for samples in two_ways.BATCHES]
    assert (kept["layers"], kept["width"], kept["rate_mbit"]) == (two_ways.LAYERS, two_ways.WIDTH, two_ways.RATE_MBIT)
    faster = ["tensor" if row["tensor parallelism"] < row["ZeRO-3"] else "zero3" for row in kept["rows"]]
    assert faster == sorted(faster) and {*faster} == {"tensor", "zero3"}


def test_heads_are_named_by_what_they_are_in_the_whole_matrix():
    right, wrong = Cut.even(0, 48, 2, parts=3, groups=4), Cut.even(0, 48, 2, groups=12)
    assert taken_for(right, 1, 4) == {"as queries": "q2 q3", "as keys": "k2 k3", "as values": "v2 v3"}
    assert taken_for(wrong, 0, 4) == {"as queries": "q0 q1", "as keys": "q2 q3", "as values": "k0 k1"}
