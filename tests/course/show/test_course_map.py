"""The map of the course says what the table says, and its paths hold their times."""

import re

import nbformat
import pytest

from tools.notebooks import chapters
from tools.sittings import sittings
from zerocourse.course.chapters import NEEDS, NUMBERS, PATHS
from zerocourse.course.show.pictures.course_map import HIGH, PLACES, WIDE, corner, course_map, shortest

MINI = 30  # minutes for reading zero/mini.py, as chapter 00 says; not within two hours
HOURS = {"two hours": (1.5, 2.25), "a day": (6, 8), "the whole course": (30, 45)}  # of chapters, and not of exercises
FIRST_ALONE = {"two hours": 5}  # of this chapter the first sitting alone


def all_needed(chapter: int) -> set[int]:
    return set(NEEDS[chapter]).union(*map(all_needed, NEEDS[chapter]))


def test_every_chapter_has_a_place_and_needs_only_earlier_ones_none_of_them_twice():
    assert list(NEEDS) == sorted(NUMBERS.values()) == sorted(PLACES)
    for chapter, needed in NEEDS.items():
        assert all(other < chapter for other in needed)
        assert not set(needed) & set().union(*map(all_needed, needed)), f"what {chapter:02} needs needs a part of it already"
        assert chapter == 0 or 0 in all_needed(chapter)


def test_the_picture_draws_the_table():
    svg = course_map().svg
    drawn = [(int(one), int(other)) for one, other in re.findall(r'data-from="(\d+)" data-to="(\d+)"', svg)]
    assert sorted(drawn) == sorted((other, chapter) for chapter, needed in NEEDS.items() for other in needed)
    assert dict(re.findall(r'data-chapter="(\d+)" data-path="([\w ]+)"', svg)) == {str(chapter): shortest(chapter) for chapter in NEEDS}
    assert "07 needs 02 and 06" in course_map().text and "two hours: 00, 05;" in course_map().text


@pytest.mark.parametrize("chapter", NEEDS)
def test_no_arrow_crosses_a_box(chapter):
    """An arrow begins below its box and ends above the other, and is looked at in a hundred points."""
    for other in NEEDS[chapter]:
        (x1, y1), (x2, y2) = corner(other), corner(chapter)
        assert y1 + HIGH < y2
        for step in range(1, 100):
            x, y = x1 + WIDE / 2 + (x2 - x1) * step / 100, y1 + HIGH + (y2 - y1 - HIGH) * step / 100
            crossed = [each for each in PLACES if corner(each)[0] <= x <= corner(each)[0] + WIDE and corner(each)[1] <= y <= corner(each)[1] + HIGH]
            assert not crossed, f"the arrow from {other:02} to {chapter:02} crosses {crossed}"


def test_a_longer_path_has_the_shorter_and_each_takes_as_long_as_it_says():
    minutes = {int(path.name[:2]): sittings(nbformat.read(path, as_version=4)) for path in chapters()}
    before: set[int] = set()
    for path, numbers in PATHS.items():
        assert before < set(numbers) <= set(NEEDS)
        least, most = HOURS[path]
        alone = FIRST_ALONE.get(path)
        takes = (sum(minutes[number][0] if number == alone else sum(minutes[number]) for number in numbers) + MINI * (alone is None)) / 60
        assert least <= takes <= most, f"{path}: {takes:.1f} hours"
        before = set(numbers)
    assert all(other in PATHS["a day"] for chapter in PATHS["a day"] for other in NEEDS[chapter]), "a day is complete in itself"
