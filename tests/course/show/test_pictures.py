"""Pictures of mechanisms: what is drawn is what real ranks hold, send and build; the canvas is the same in every place."""

import base64
import html
import io
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from itertools import combinations, pairwise

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from test_story import frames_of
from torch import nn
from worlds import T, V, gpt

from zerocourse import shard
from zerocourse.course.chapters.data_parallel import ring_turns
from zerocourse.course.chapters.meta_device import becoming_real
from zerocourse.course.chapters.rank_maps import padding
from zerocourse.course.show.palette import MEANINGS
from zerocourse.course.show.pictures import holdings, svg
from zerocourse.errors import BadInput
from zerocourse.measure.drawn.png import MARGIN, png_of_svg
from zerocourse.models.gpt2 import GPTConfig

IMAGE = re.compile(r'<div style="overflow-x:auto"><img src="data:image/png;base64,([^"]+)" alt="([^"]+)" width="([\d.]+)" '
                   r'style="max-width:100%; min-width:\d+px; height:auto"></div>')
SVG = "{http://www.w3.org/2000/svg}"
TINY = GPTConfig(n_layer=2, n_head=2, n_embd=8, block_size=T, vocab_size=V)
MODELS = {"plain": gpt, "half": lambda: gpt().bfloat16(), "frozen": lambda: frozen(gpt())}


def frozen(model: nn.Module) -> nn.Module:
    model.h[0].requires_grad_(False)
    return model


def drawn(shown, name: str) -> list[dict[str, str]]:
    """The data of each element of a picture that has `data-name`."""
    return [each.attrib for each in ElementTree.fromstring(shown.svg).iter() if f"data-{name}" in each.attrib]


# -- holdings ---------------------------------------------------------------------------------------------------------

def held_in(kinds: list[tuple[str, int, str | None]]) -> list[dict[str, int]]:
    """What this rank holds at the end of a second backward: parameters, gradients, and the optimizer's states."""
    found = []
    for name, stage, rank_map in kinds:
        model = MODELS[name]()
        model, optimizer = shard(model, torch.optim.AdamW(model.parameters()), stage=stage, rank_map=rank_map)
        for step in range(2):
            tokens = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(dist.get_rank() + step))
            model(tokens, tokens).backward()
            if step == 0:
                optimizer.step()
                optimizer.zero_grad()
        found.append(model.zero.memory(optimizer))
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_holdings_are_what_ranks_hold(pool, world_size):
    models = (("plain", None), ("plain", "greedy")) if world_size == 2 else (("half", None), ("frozen", None))
    kinds = [(name, stage, rank_map) for name, rank_map in models for stage in range(4)]
    ranks = pool(world_size).run(held_in, kinds)
    for index, (name, stage, rank_map) in enumerate(kinds):
        picture = holdings.holdings(MODELS[name](), world_size, stages=(stage,), rank_map=rank_map)
        for rank, measured in enumerate(ranks):
            total = Counter()
            for each in drawn(picture, "stage"):
                if int(each["data-rank"]) == rank:
                    total[each["data-of"]] += int(each["data-bytes"])
            for of in ("parameters", "gradients", "optimizer"):
                assert total[of] == measured[index][f"{of}_bytes"], (name, stage, rank_map, rank, of)


def test_holdings_of_odd_worlds():
    with torch.device("meta"):
        model = nn.Linear(1, 1)
    alone = Counter(each["data-stage"] for each in drawn(holdings.holdings(model, 1), "stage"))
    assert len(set(alone.values())) == 1 and len(alone) == 4  # on one rank all stages are alike
    many = drawn(holdings.holdings(model, 8, stages=(3,)), "stage")
    assert {each["data-rank"] for each in many if each["data-of"] == "optimizer"} == {"0", "1"}  # padding has no states
    with pytest.raises(BadInput, match="world_size"):
        holdings.holdings(model, 9)
    with pytest.raises(BadInput, match="stages is \\(4,\\)"):
        holdings.holdings(model, 2, stages=(4,))


# -- padding ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("model, world_size, unit, rank_map", [
    (gpt(), 1, "root", None), (gpt(), 3, "root", None), (gpt(), 5, "h.0", None), (gpt(), 4, "h.1", "greedy"),
    (nn.Linear(1, 1), 8, "root", None)])
def test_pieces_tile_the_flat_buffer(model, world_size, unit, rank_map):
    shown = padding.padding(model, world_size, unit, rank_map)
    pieces = sorted((int(each["data-start"]), int(each["data-stop"]), each["data-name"]) for each in drawn(shown, "start"))
    assert pieces[0][0] == 0 and all(one[1] == other[0] for one, other in pairwise(pieces))
    params = dict(model.named_parameters())
    assert all(stop - start == params[name].numel() for start, stop, name in pieces if name)
    if rank_map is None:
        real = sum(stop - start for start, stop, name in pieces if name)
        assert pieces[-1][1] == -(-real // world_size) * world_size
        assert shown.text.split(": ")[1].startswith(f"{real:,} elements of ")
        assert f"and {pieces[-1][1] - real:,} of padding" in shown.text


def test_padding_names_the_units_there_are():
    with pytest.raises(BadInput, match="root, h.0, h.1"):
        padding.padding(gpt(), 2, "h.7")


# -- the ring ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_ring_that_is_drawn_ran(pool, world_size):
    turns = pool(world_size).run(ring_turns.ring_turns)
    film = ring_turns.ring(turns)
    frames = [[each.attrib for each in ElementTree.fromstring(film.still(number)).iter()] for number in range(len(film.frames))]
    assert len(frames) == 1 + 2 * (world_size - 1)
    everybody = set(range(world_size))
    for number, frame in enumerate(frames):
        there, arrows = defaultdict(set), [each for each in frame if "data-from" in each]
        for each in frame:
            if "data-of" in each:
                there[int(each["data-rank"]), int(each["data-part"])].add(int(each["data-of"]))
        assert there == {(rank, part): set(ranks) for rank, one in enumerate(turns) for part, ranks in enumerate(one[number].parts)}
        assert len(arrows) == (world_size if number else 0)
        for each in arrows:  # what was sent has arrived at the right neighbour
            sender, part = int(each["data-from"]), int(each["data-part"])
            assert there[sender, part] <= there[(sender + 1) % world_size, part]
        whole = {place for place, ranks in there.items() if ranks == everybody}
        if number == world_size - 1:
            assert whole == {(rank, rank) for rank in everybody}
        if number == len(frames) - 1:
            assert len(whole) == world_size**2


def test_a_ring_of_one_rank_is_refused():
    with pytest.raises(BadInput, match="1 ranks"):
        ring_turns.ring([[]])


# -- becoming real ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("world_size", [1, 2])
def test_a_deferred_model_becomes_real(pool, world_size):
    made = pool(world_size).run(becoming_real.watched_build, TINY)
    frames = frames_of(becoming_real.becoming_real(made))
    whole = sum(becoming_real.size_of(buffers) for buffers in made[0].units.values())
    assert len(frames) == 1 + 3 * len(made[0].units) and whole >= 4 * sum(param.numel() for param in gpt().parameters())
    for rank, (moments, _) in enumerate(made):
        placed = [sum(int(each.attrib["data-bytes"]) for each in frame if each.attrib["data-rank"] == str(rank))
                  for frame in frames]
        for nbytes, moment in zip(placed, moments, strict=True):  # what is drawn is what the ledger measured
            values = moment.what == "whole" and 4 * TINY.n_embd  # of the last parameter that was filled, for a moment more
            assert moment.alive == nbytes + values, moment
        assert placed[0] == 0 and placed[-1] == whole // world_size


# -- the canvas -------------------------------------------------------------------------------------------------------

def test_pictures_suit_every_host():
    """No ids that two pictures could share, no style sheet or script, words for who does not see; shown as PNG, in HTML and alone."""
    for draw in (lambda: holdings.holdings(gpt(), 2), lambda: padding.padding(gpt(), 3)):
        shown, again = draw(), draw()
        top = ElementTree.fromstring(shown.svg)
        assert shown.svg == again.svg and len(shown.svg) < 200_000
        assert not [each for each in top.iter() if "id" in each.attrib or each.tag in (f"{SVG}style", f"{SVG}script")]
        assert top.find(f"{SVG}title").text and top.find(f"{SVG}desc").text == shown.text and re.search(r"\d", shown.text)
        data, _ = shown._repr_mimebundle_()
        assert set(data) == {"text/plain", "text/html", "image/png"} and data["text/plain"] == shown.text
        assert data == again._repr_mimebundle_()[0], "the same bytes each time"
        encoded, alt, width = IMAGE.fullmatch(data["text/html"]).groups()
        assert encoded == data["image/png"] and html.unescape(alt) == shown.text
        assert float(width) == float(top.attrib["width"]) + 2 * MARGIN
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
            assert image.size == tuple(2 * (int(float(top.attrib[side])) + 2 * MARGIN) for side in ("width", "height"))
            assert image.info["Description"] == shown.text


def test_a_png_shows_what_the_svg_has():
    """Colours at places, one a shape; what it cannot draw is said."""
    inner, drawing = svg.Drawing(20, 20), svg.Drawing(100, 60)
    inner.rect(0, 0, 10, 10, fill="#ff0000", stroke="none")
    drawing.put(inner, 10, 20)
    drawing.line(40, 5, 40, 55, color="#00ff00", width=6)
    drawing.tag("circle", cx=70, cy=30, r=10, fill="#0000ff")
    drawing.text(0, 58, "words")
    with drawing.group(opacity=0.5):
        drawing.rect(85, 0, 10, 10, fill="#000000", stroke="none")
    with Image.open(io.BytesIO(png_of_svg(svg.still(drawing, "shapes", "a box, a line and a circle"), "shapes"))) as image:
        seen = {place: image.convert("RGB").getpixel(tuple(2 * (MARGIN + at) for at in place))
                for place in ((15, 25), (5, 25), (40, 30), (70, 30), (78, 38), (90, 5))}
    assert seen == {(15, 25): (255, 0, 0), (5, 25): (255, 255, 255), (40, 30): (0, 255, 0), (70, 30): (0, 0, 255),
                    (78, 38): (255, 255, 255), (90, 5): pytest.approx((127, 127, 127), abs=1)}
    drawing.tag("ellipse", rx=3)
    with pytest.raises(BadInput, match="element <ellipse>"):
        png_of_svg(svg.still(drawing, "shapes", "a box, a line and a circle"), "shapes")


def test_one_frame_at_a_time():
    """At each moment of an animation one frame is seen, and each for as long."""
    top = ElementTree.fromstring(svg.animated([svg.Drawing(10, 10) for _ in range(3)], 2, "a title", "three frames of nothing"))
    motions = [each.find(f"{SVG}animate").attrib for each in top if each.find(f"{SVG}animate") is not None]
    assert {each["dur"] for each in motions} == {"6s"}
    for moment, wanted in ((0.1, 0), (0.5, 1), (0.9, 2)):
        seen = [[value for time, value in zip(each["keyTimes"].split(";"), each["values"].split(";"), strict=True)
                 if float(time) <= moment][-1] for each in motions]
        assert seen == ["1" if index == wanted else "0" for index in range(3)]


def test_meanings_are_told_apart_in_grey():
    """By brightness (a contrast of 1.5 at least), or by hatching."""
    for (one, here), (other, there) in combinations(MEANINGS.items(), 2):
        low, high = sorted((here.luminance, there.luminance))
        assert (high + 0.05) / (low + 0.05) >= 1.5 or here.hatch != there.hatch, (one, other)
        assert here.letter != there.letter
    assert 0.99 < MEANINGS["padding"].luminance / 0.7758 < 1.01  # #e4e4e4, by hand: ((228/255 + 0.055) / 1.055) ** 2.4


def test_the_canvas_refuses_what_has_no_meaning():
    with pytest.raises(BadInput, match="kind 'weights'"):
        svg.Drawing().rect(0, 0, 1, 1, "weights")
    with pytest.raises(BadInput, match="say in a sentence"):
        svg.still(svg.Drawing(), "title", "too short")
    with pytest.raises(BadInput, match="frames is empty"):
        svg.strip([], "title", "a sentence of five words")
