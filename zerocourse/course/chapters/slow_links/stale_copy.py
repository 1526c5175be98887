"""A bug of hierarchical partitions: a node goes on with the copy of weights that it made in the first step."""

from ...museum.breaks import Break, drop
from ...museum.bug import Bug

STALE_COPY = Bug(
    "stale_copy", "a node keeps its copy of the weights over an update",
    symptom="The loss does not move, though gradients come and the optimizer steps.",
    instrument="the weights with which a rank computes, beside its slices", source="common",
    test="parallel/test_plus_plus.py::test_training_stays_near",
    changes=(Break("parallel.plusplus.plus_plus:ZeroPlusPlus.step", "clear() ^expr", drop),
             Break("parallel.plusplus.plus_plus:ZeroPlusPlus.unshard", "if[1].test", "version is not None")))
