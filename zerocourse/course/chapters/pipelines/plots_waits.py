"""A ring of waits: the lists of its ranks, how far each has come, and what each waits for."""

from matplotlib.figure import Figure

from ....errors import BadInput
from ....parallel.pipeline import Action, Schedule
from ....parallel.pipeline.schedules.deadlock import ring_of_waits
from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import FAINT, INK, MEANINGS

DONE, STANDS = "#ffffff", MEANINGS["gradients"].color


def short(action: Action) -> str:
    """“F0” for what is computed, “send F0” and “recv F0” for what travels."""
    return f"{action.kind.lower().replace(' f', ' F').replace(' b', ' B') if action.is_transfer else action.kind}{action.micro_batch}"


def drawn_waits(plan: Schedule, sends: str) -> Figure:
    """An arrow from each action in which a rank stands to the one that it waits for. Raises BadInput where every list ends."""
    waits = ring_of_waits(plan, sends)
    if not waits:
        raise BadInput(f"with {sends} sends every list of {plan.name} comes to its end: there is no ring of waits to draw")
    stands = {wait.rank: plan.actions[wait.rank].index(wait.action) for wait in waits}
    awaited = {wait.peer: plan.actions[wait.peer].index(wait.awaited) for wait in waits}
    length = max(*stands.values(), *awaited.values()) + 1
    figure, axes = panels(1.2 + 1.05 * length, 0.7 + 0.75 * len(stands))
    for row, (rank, at) in enumerate(stands.items()):
        for place, action in enumerate(plan.actions[rank][:length]):
            begun = place <= at
            axes.text(place, row, short(action).replace(" ", "\n"), ha="center", va="center", fontsize=8,
                      color=INK if begun else FAINT,
                      bbox={"boxstyle": "round,pad=0.35", "facecolor": STANDS if place == at else DONE,
                            "edgecolor": INK if begun else FAINT, "linestyle": "-" if begun else ":",
                            "linewidth": 1.6 if place == at else 0.8})
    rows = {rank: row for row, rank in enumerate(stands)}
    for wait in waits:
        axes.annotate("", xy=(awaited[wait.peer], rows[wait.peer]), xytext=(stands[wait.rank], rows[wait.rank]),
                      arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 16, "shrinkB": 16, "linewidth": 1.4})
    axes.set(yticks=range(len(stands)), yticklabels=[f"rank {rank}" for rank in stands], ylim=(len(stands) - 0.5, -0.5),
             xlim=(-0.6, length - 0.4), xticks=[])
    axes.spines[:].set_visible(False)
    axes.tick_params(left=False)
    said = "; ".join(f"rank {wait.rank} stands in {short(wait.action)} until rank {wait.peer} does {short(wait.awaited)}" for wait in waits)
    return described(figure, f"The lists of {plan.name}, as far as they come. {said[0].upper()}{said[1:]}.")
