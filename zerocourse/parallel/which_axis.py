"""A run on a mesh is not equal to one process: which axis broke it?

Each axis is turned off, one at a time: the same steps run on the same samples, with that axis of size 1 and the others as
they are. Where a run without axis X is right, and the run with it is not, the fault is in what X does, or in what others
do where X is there. Without that the search begins in a thousand places.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..layout.mesh import Mesh


@dataclass(frozen=True)
class AxisVerdict:
    """wrong: is the whole mesh's run wrong?   without: by axis, whether the run without it is right.

    alone: by axis, whether the run with it alone is right.   one: is a run on one rank right?
    """

    wrong: bool
    without: Mapping[str, bool]
    alone: Mapping[str, bool]
    one: bool = True

    @property
    def broken(self) -> list[str]:
        """The axes whose removal makes the run right: of them the fault needs each."""
        return [axis for axis, right in self.without.items() if right]

    def __str__(self) -> str:
        if not self.wrong:
            return "the run on the mesh equals one process"
        if not self.one:
            return "the run is wrong on one rank, too: the fault is in no axis"
        if not self.broken:
            alone = [axis for axis, right in self.alone.items() if not right]
            return f"the run is wrong whichever axis is turned off: {' and '.join(alone)} are each wrong alone"
        if len(self.broken) == 1:
            return f"the fault is along {self.broken[0]}: the run is right without it and wrong with it"
        return f"the fault needs {' and '.join(self.broken)} together: without either of them the run is right"


def which_axis(mesh: Mesh, is_right: Callable[[Mesh], bool]) -> AxisVerdict:
    """Turn the axes of `mesh` off one at a time, and say which one breaks the run.

    is_right(mesh): runs the same steps on the same samples on so many ranks, and says whether losses and weights are those
    of one process. It is called once for the whole mesh, and where that is wrong, for one rank, and twice for each axis.
    """
    axes = [axis for axis, size in mesh.sizes.items() if size > 1]
    if is_right(mesh):
        return AxisVerdict(False, {}, {})
    without = {axis: is_right(off(mesh, [axis])) for axis in axes}
    alone = {axis: is_right(off(mesh, [other for other in axes if other != axis])) for axis in axes}
    return AxisVerdict(True, without, alone, is_right(off(mesh, axes)))


def off(mesh: Mesh, axes: Sequence[str]) -> Mesh:
    """The mesh with these axes of size 1."""
    return Mesh({axis: 1 if axis in axes else size for axis, size in mesh.sizes.items()}, mesh.per_node)
