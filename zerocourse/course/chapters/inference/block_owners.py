"""Who has which block of a server's cache, drawn after some of its steps."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ....inference import Server
from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import INK

FILLS = ("#9cc3e0", "#f2c48d", "#b7d7a8", "#d5b8dc", "#e6b8b7", "#cfcfcf")


def owners(server: Server, names: Mapping[object, str]) -> list[str]:
    """For each block the names of the requests that have it, together; "" where nobody has.   names: by request."""
    tables = [(names[request], request.table) for request in server.scheduler.running]
    return ["".join(name for name, table in tables if block in table) for block in range(len(server.pool.owners))]


def block_owners(rows: Mapping[str, Sequence[str]], size: int) -> Figure:
    """rows: what a row shows → for each block of the cache who has it, as `owners` says."""
    blocks = max(map(len, rows.values()))
    figure, axes = panels(8, 0.9 + 0.5 * len(rows))
    names = sorted({name for row in rows.values() for name in row if name})
    fills = {name: FILLS[number % len(FILLS)] for number, name in enumerate(names)}
    said = []
    for line, (when, row) in enumerate(rows.items()):
        for block, name in enumerate(row):
            axes.add_patch(Rectangle((block, line), 0.94, 0.8, facecolor=fills.get(name, "white"), edgecolor=INK, linewidth=0.8))
            axes.annotate(name, (block + 0.47, line + 0.4), ha="center", va="center", fontsize=9, color=INK)
        said.append(f"{when}: {sum(map(bool, row))} of {len(row)} blocks, {sum(len(name) > 1 for name in row)} of them shared")
    axes.set(xlim=(-0.1, blocks + 0.1), ylim=(len(rows), -0.1), yticks=[line + 0.4 for line in range(len(rows))], yticklabels=list(rows), xticks=[],
             title=f"blocks for {size} tokens, and who has them; letters in one block share it")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return described(figure, "; ".join(said))
