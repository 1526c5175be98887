"""A bug of layouts that nobody sees on two ranks, and everybody on thousands: the remainder on rank 0."""

from ...museum.breaks import Break
from ...museum.bug import Bug

REMAINDER = Bug(
    "remainder", "what is left over of a flat buffer goes to rank 0",
    symptom="On few ranks none; on thousands rank 0 runs out of memory, and the others do not.",
    instrument="bytes held, of a rank of many", source="common",
    test="layout/test_rankmap.py::test_flat_slices_are_equal_and_padding_is_less_than_one_a_rank",
    changes=(Break("layout.rankmap:Layout.build", "bounds=[1]",
                   "bounds = [rank and end - (world_size - rank) * (end // world_size)\n"
                   "          for rank in range(world_size + 1)]"),))
