"""What ranks are told whose forwards differ."""

import pytest

from zerocourse.errors import CollectiveError
from zerocourse.zero.passes.agreement import number, refuse

A, B, B_FIRST, A_LAST = ["a", 0], ["b", 1], ["b", 0], ["a", 1]


@pytest.mark.parametrize("by_rank, said", (
    ([[A, B], [A, B], [A]], "unit 'b' ran on rank 0 and was skipped on rank 2: at stage 3, which gathers it"),
    ([[A], [A, B]], "unit 'b' ran on rank 1 and was skipped on rank 0: at stage 3"),
    ([[A, B], [A, B], [B_FIRST, A_LAST]], "rank 0 ran a b, and rank 2 ran b a: at stage 3, .* in the same order"),
    ([[A, B], [A, ["b", 0]]], "rank 0 ran a b, and rank 1 ran a b"),
))
def test_stage_3_says_which_unit_it_was(by_rank, said):
    with pytest.raises(CollectiveError, match=said):
        refuse(by_rank)


def test_a_number_is_that_of_its_content_alone_and_fits_an_int64():
    assert number(b"a") == number(b"a") != number(b"b")
    assert all(0 <= number(bytes([each])) < 2**56 for each in range(100))
