"""The museum of bugs: real mistakes, which can be planted in the package and taken out again.

    from zerocourse.course.museum import BUGS, planted

    with planted("summed"):     # on every rank, inside of the function that runs there
        ...
    BUGS["summed"].line()       # what was changed
"""

from contextlib import nullcontext

from .bug import Bug, Museum
from .families import factors, reductions, replicas, sizes, timing, updates, writers

BUGS = Museum(reductions.BUGS, replicas.BUGS, updates.BUGS, sizes.BUGS, timing.BUGS, factors.BUGS, writers.BUGS)


def planted(bug: str | Bug | None):
    """A context in which the package has this bug, in this process; none for None. Raises BadInput for an unknown name."""
    if bug is None:
        return nullcontext()
    return (BUGS[bug] if isinstance(bug, str) else bug).planted()
