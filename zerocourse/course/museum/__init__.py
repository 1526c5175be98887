"""The museum of bugs: real mistakes, which can be planted in the package and taken out again.

    from zerocourse.course.museum import BUGS, planted

    with planted("summed"):     # on every rank, inside of the function that runs there
        ...
    BUGS["summed"].line()       # what was changed
"""

from . import reductions, replicas, sizes, timing, updates
from .bug import Museum

BUGS = Museum(reductions.BUGS, replicas.BUGS, updates.BUGS, sizes.BUGS, timing.BUGS)


def planted(name: str):
    """A context in which the package has this bug, in this process. Raises BadInput for an unknown name."""
    return BUGS[name].planted()
