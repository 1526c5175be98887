"""Which elements of a flat buffer the programs of a kernel take, and where the last one needs its mask."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import INK


def program_blocks(n: int, block: int) -> Figure:
    """A row of elements, cut into blocks; what lies behind element n - 1 is hatched, and no program may write there."""
    figure, axes = panels(8, 1.7)
    programs = -(-n // block)
    for element in range(programs * block):
        inside = element < n
        axes.add_patch(Rectangle((element, 0), 1, 1, facecolor="white" if inside else "#e4e4e4", edgecolor=INK, linewidth=0.8,
                                 hatch=None if inside else "////"))
        axes.annotate(str(element), (element + 0.5, 0.5), ha="center", va="center", fontsize=9, color=INK,
                      bbox=None if inside else {"facecolor": "#e4e4e4", "edgecolor": "none", "pad": 2})
    for program in range(programs):
        axes.hlines(1.25, program * block + 0.08, (program + 1) * block - 0.08, color=INK, linewidth=2)
        axes.annotate(f"program {program}", (program * block + block / 2, 1.4), ha="center", va="bottom", fontsize=9)
    axes.set(xlim=(-0.2, programs * block + 0.2), ylim=(-0.1, 2), title=f"{n} elements, blocks of {block}: hatched is somebody else's")
    axes.axis("off")
    return described(figure, f"{programs} programs take {block} elements each, from 0, {block} and so on. "
                             f"The last {programs * block - n} of program {programs - 1} are behind the end.")
