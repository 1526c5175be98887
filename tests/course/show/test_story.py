"""Recorded steps as pictures: every byte is placed, nothing is drawn that was not recorded, and what is kept is not stale."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from zerocourse.course.chapters.zero2 import bucket_flow
from zerocourse.course.chapters.zero3 import filmstrip
from zerocourse.course.show.pictures import recorded_stages, story
from zerocourse.course.show.pictures.placing import find, pieces, under_way, units
from zerocourse.course.show.pictures.recorded_stages import recorded_stage
from zerocourse.errors import BadInput
from zerocourse.measure.stage_meter import KINDS

STAGES = (0, 1, 2, 3)


@pytest.mark.parametrize("stage", STAGES)
def test_every_byte_of_a_recorded_step_has_a_place(stage):
    """After each event the pieces are, kind by kind, the bytes that the stage counted; activations have no unit."""
    for rank in recorded_stage(stage):
        for index, event in enumerate(rank.events):
            placed = Counter()
            for piece in pieces(rank, index, stage):
                placed[piece.kind] += piece.nbytes
            assert {kind: placed[kind] for kind in KINDS[:-1]} == {kind: event["kinds"][kind] for kind in KINDS[:-1]}


@pytest.mark.parametrize("stage", STAGES)
def test_pieces_lie_inside_their_units_and_slices_tile_them(stage):
    ranks = recorded_stage(stage)
    for index in range(len(ranks[0].events)):
        slices = defaultdict(list)
        for rank in ranks:
            for piece in pieces(rank, min(index, len(rank.events) - 1), stage):
                assert 0 <= piece.start < piece.stop <= units(rank)[piece.unit]
                if not piece.passing and piece.of == "optimizer":
                    slices[piece.unit].append((piece.start, piece.stop))
        for unit, found in slices.items():
            covered = sorted(set(found))
            assert covered[0][0] == 0 and covered[-1][1] == units(ranks[0])[unit]
            assert all(one[1] == other[0] for one, other in pairwise(covered)) or stage == 0


def frames_of(film) -> list[list[ElementTree.Element]]:
    """The elements with bytes of each frame of a film, with those that are below all of them."""
    return [[each for each in ElementTree.fromstring(film.still(number)).iter() if "data-bytes" in each.attrib]
            for number in range(len(film.frames))]


@pytest.mark.parametrize("stage", STAGES)
def test_a_story_draws_what_was_recorded(stage):
    ranks = recorded_stage(stage)
    frames = frames_of(story.story(stage))
    assert len(frames) == len(story.moments(ranks[0])) > 8
    for (verb, unit), drawn in zip(story.moments(ranks[0]), frames, strict=True):
        for number, rank in enumerate(ranks):
            event = rank.events[find(rank, verb, unit)]
            mine = [each.attrib for each in drawn if each.attrib["data-rank"] == str(number)]
            total = {each["data-kind"]: int(each["data-bytes"]) for each in mine if "data-kind" in each}
            assert total == {kind: nbytes for kind, nbytes in event["kinds"].items() if nbytes}
            placed = sum(int(each["data-bytes"]) for each in mine if "data-unit" in each)
            assert placed == event["alive"] - event["kinds"]["activations"], (verb, unit)


def test_a_story_says_what_is_on_its_way():
    ranks = recorded_stage(3)
    assert ("all_gather", "h.1") in under_way(ranks[0], find(ranks[0], "forward", "h.0")), "the next block is gathered ahead"
    film = story.story(3)
    assert any("The parameters of h.1 are on their way." in frame.caption for frame in film.frames)
    assert re.search("at most 599 kB|at most [0-9]+ kB", film.text) and "Every rank keeps its half" in film.text


def test_a_filmstrip_shows_the_life_of_one_unit():
    frames = [[int(each.attrib["data-bytes"]) for each in frame if each.attrib.get("data-rank") == "0"]
              for frame in frames_of(filmstrip.filmstrip("h.1"))]
    shard, full = 25_408, 50_816
    assert [sorted(frame) for frame in frames] == [
        [shard], [shard, full], [shard, full], [shard],  # sharded, gathered, used, free
        [shard, full], [shard, full, full], [shard, shard, full], [shard, shard]]  # and with a bucket, then its slice


def test_buckets_fill_leave_and_come_back_as_slices():
    rank = recorded_stage(2)[0]
    film = bucket_flow.buckets()
    frames = [ElementTree.fromstring(film.still(number)) for number in range(len(film.frames))]
    assert len(frames) == len(bucket_flow.halves(rank)) == 9
    filled, kept = [], []
    for index, frame in zip(bucket_flow.halves(rank), frames, strict=True):
        bucket = {each.attrib["data-buffer"]: int(each.attrib["data-bucket"]) for each in frame.iter() if "data-bucket" in each.attrib}
        assert bucket == {name: held["bucket"] for name, held in rank.held[index].items()}
        filled.append(sum("data-parameter" in each.attrib and "h.3." in each.attrib["data-parameter"] for each in frame.iter()))
        kept.append(sum(int(each.attrib.get("data-slice", 0)) > 0 for each in frame.iter()))
    assert 0 < filled[0] < filled[1] == 12 and filled[2] == 0, "half, full, gone"
    assert kept == sorted(kept) and kept[0] == 0 and kept[-1] == len(rank.buffers)


@pytest.mark.parametrize("draw, wrong", [(lambda: story.story(4), "stage is 4: it must be 0, 1, 2 or 3"),
                                         (lambda: filmstrip.filmstrip("h.9"), "'h.9', .* it has h.0, h.1, h.2, h.3")])
def test_what_was_not_recorded_is_refused(draw, wrong):
    with pytest.raises(BadInput, match=wrong):
        draw()


def test_the_picture_of_the_readme_is_not_stale():
    again = "draw it again: python -m zerocourse.course.show.pictures.story"
    assert story.README_PICTURE.read_text() == story.story(3).animation() + "\n", again


def test_the_recorded_steps_are_those_that_the_package_makes(pool):
    """Recorded again, they hold the same bytes in the same order of events; only times differ."""
    def lasting(events: list) -> list:
        return [(verb, unit, nbytes, kinds[:3]) for verb, unit, _, _, nbytes, kinds, *_ in events if verb in ("forward", "step", "start")]

    for rank, recorded in enumerate(pool(2).run(recorded_stages.record_here, STAGES)):
        for stage in STAGES:
            kept = recorded_stage(stage)[rank]
            assert {name: tuple(buffer) for name, buffer in recorded[stage]["buffers"].items()} == {
                name: (buffer.unit, buffer.elements, buffer.own, buffer.optimizer, buffer.params) for name, buffer in kept.buffers.items()}
            again = [(event["verb"], event["unit"], 0, 0, event["bytes"], list(event["kinds"].values())) for event in kept.events]
            assert lasting(recorded[stage]["events"]) == lasting(again)
            assert Counter(event[0] for event in recorded[stage]["events"]) == Counter(event["verb"] for event in kept.events)
