"""The check of 18.w1, which chapter 18 asks for itself: the number of a rank, from its place in the box."""

from ....checks import exercise


def rank_of(place, sizes):
    """The number of the rank at a place in the mesh.

    place: its coordinate along each axis, such as {"pp": 1, "dp": 0, "tp": 1}.
    sizes: the ranks along each axis, the slowest axis first and the fastest last.
    The keys of both are the same, those of `place` in any order.
    """
    rank = 0
    for axis, size in sizes.items():
        rank = rank * size + place[axis]
    return rank


BOX, LONG = {"pp": 2, "dp": 2, "tp": 2}, {"pp": 2, "dp": 3, "tp": 4}
CASES = [({"pp": 1, "dp": 0, "tp": 1}, BOX), ({"pp": 0, "dp": 1, "tp": 0}, BOX), ({"pp": 1, "dp": 2, "tp": 3}, LONG),
         ({"tp": 1, "pp": 1, "dp": 0}, LONG), ({"pp": 0, "dp": 1, "tp": 3}, LONG), ({"dp": 4, "pp": 1, "tp": 0}, {"dp": 5, "pp": 3, "tp": 1}),
         ({"dp": 0}, {"dp": 8})]


@exercise(
    "18.w1", "The number of a rank", minutes=6, difficulty=1, answer="rank_of", own=rank_of,
    replaces=("zerocourse.layout.mesh:Mesh.rank",), cases=CASES,
    mistakes={
        "first one fastest": {"order": lambda sizes, place: list(sizes)[::-1]},
        "order of the place": {"order": lambda sizes, place: list(place)},
        "added up": {"step": lambda rank, size, at: rank + at},
        "the axis before": {"step": lambda rank, size, at: (rank + at) * size},
        "always two": {"step": lambda rank, size, at: 2 * rank + at},
        "from 1": {"first": 1},
    })
def placed(place, sizes, *, order=lambda sizes, place: list(sizes), step=lambda rank, size, at: rank * size + at, first=0):
    """From the slowest axis to the fastest."""
    rank = 0
    for axis in order(sizes, place):
        rank = step(rank, sizes[axis], place[axis])
    return rank + first
