"""Figures of scale: what one rank of many holds and waits for. Pure functions from a simulation's numbers to matplotlib figures."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ....formulas.units import gb
from ...show.alternative_text import described
from ...show.figures import panels, stacked_rows, thin_hatches
from ...show.palette import FAINT, INK, MEANINGS, Meaning
from ...show.pictures.timeline_lanes import LOOKS

GB = 1e9
STATES = "parameters", "gradients", "optimizer"
NARROW = 0.05  # of the longest bar: a narrower block has no room for its letter
SLICES = "the rank's slices of parameters and optimizer states"
AT_THE_PEAK = {"activations and all else": MEANINGS["activations"], "gradients": MEANINGS["gradients"],
               "gathered parameters": MEANINGS["parameters"], SLICES: MEANINGS["optimizer"]}
COMPUTES, WAITS = {"facecolor": LOOKS["forward"].fill}, {"facecolor": "white", "hatch": "////"}  # as in timelines
SHADES = "#ffffff", "#d0d0d0"  # of slices, in turn; their numbers tell them apart


def look(meaning: Meaning) -> dict:
    return {"facecolor": meaning.color, "hatch": meaning.mpl_hatch, "edgecolor": "white", "linewidth": 0}


@thin_hatches
def states_by_stage(stages: Mapping[str, Mapping[str, int]], formula: Mapping[str, int], title: str) -> Figure:
    """What a rank holds at each stage, stacked by kind, with a black line where the formula ends. Bytes in, GB drawn.

    stages: name → parameters_bytes, gradients_bytes, optimizer_bytes.   formula: name → their sum.
    """
    (figure, axes), said = panels(8, 0.9 + 0.5 * len(stages)), []
    rows = {name: {kind: held[f"{kind}_bytes"] / GB for kind in STATES} for name, held in stages.items()}
    longest = max(sum(row.values()) for row in rows.values())
    ends = stacked_rows(axes, rows, {kind: look(MEANINGS[kind]) for kind in STATES}, lettered=NARROW * longest)
    for row, (name, end) in enumerate(zip(stages, ends, strict=True)):
        axes.vlines(formula[name] / GB, row - 0.4, row + 0.4, color=INK, linewidth=1.6, label="by formula" if row == 0 else None)
        axes.annotate(gb(round(end * GB)), (end, row), (5, 0), textcoords="offset points", va="center", fontsize=9)
        said.append(f"{name} {gb(formula[name])}")
    axes.set(xlabel="GB per rank", xlim=(0, 1.14 * longest), title=title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return described(figure, f"By formula: {', '.join(said)}")


def parts_of_peak(result: Mapping) -> dict[str, int]:
    """The bytes at the peak of a simulated step, by the names of `AT_THE_PEAK`: what N divides comes last."""
    kinds, own = result["peak_kinds"], result["parameters_bytes"]
    other = result["peak_bytes"] - kinds["parameters"] - kinds["gradients"] - kinds["optimizer"]
    parts = other, kinds["gradients"], kinds["parameters"] - own, own + kinds["optimizer"]
    return dict(zip(AT_THE_PEAK, parts, strict=True))


@thin_hatches
def peaks_over_ranks(panels: Mapping[str, Mapping[int, Mapping]], divided: Mapping[int, int]) -> Figure:
    """The peak of a step over the number of ranks, stacked by kind, both axes logarithmic; a panel for each name.

    What N does not divide lies at the bottom, so that the uppermost edge bends where it takes over.
    panels: name → {ranks: what was simulated}.   divided: ranks → all model states over N, a dashed line.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    said, low = [], min(divided.values()) / GB
    for axes, (name, results) in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True):
        at, parts = list(results), [parts_of_peak(result) for result in results.values()]
        below = [low / 2] * len(at)  # a logarithmic axis has no 0
        total = [0.0] * len(at)
        for kind, meaning in AT_THE_PEAK.items():
            total = [whole + each[kind] / GB for whole, each in zip(total, parts, strict=True)]
            axes.fill_between(at, below, total, **look(meaning), label=kind)
            below = total
        axes.plot(at, total, color=INK, linewidth=1.5, marker="o", markersize=3, label="the peak of a step")
        axes.plot(list(divided), [nbytes / GB for nbytes in divided.values()], color=INK, linestyle="--", linewidth=1.2,
                  label="all model states over N")
        axes.set(xscale="log", yscale="log", xlim=(at[0], at[-1]), ylim=(low / 2, 2.2 * max(total)), title=name, xlabel="ranks, N")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xticks(at[::2], [f"{ranks:,}" for ranks in at[::2]], fontsize=8)
        axes.minorticks_off()
        for ranks, height in ((at[0], total[0]), (at[-1], total[-1])):
            axes.annotate(gb(round(height * GB)), (ranks, height), (3 if ranks == at[0] else -3, 5), textcoords="offset points",
                          ha="left" if ranks == at[0] else "right", fontsize=9, weight="bold")
        last = ", ".join(f"{kind} {gb(nbytes)}" for kind, nbytes in parts[-1].items())
        said.append(f"{name}: {gb(round(total[0] * GB))} on {at[0]} rank, {gb(round(total[-1] * GB))} on {at[-1]:,} ({last})")
    figure.axes[0].set_ylabel("GB per rank")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.set_label(f"The peak of a step over the number of ranks. {'; '.join(said)}. "
                     f"All model states over N go on falling, to {gb(divided[max(divided)])}.")
    return figure


@thin_hatches
def seconds_over_ranks(ways: Mapping[str, Mapping[int, Mapping[str, float]]], title: str) -> Figure:
    """How long a step takes: a bar for each way at each number of ranks, cut into computing and standing still.

    ways: name → {ranks: step_seconds, compute_seconds, exposed_seconds}; of several each has a letter.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes, said, width = figure.subplots(), [], 0.8 / len(ways)
    for number, (name, results) in enumerate(ways.items()):
        letter = chr(ord("A") + number) if len(ways) > 1 else ""
        at = [place + (number - (len(ways) - 1) / 2) * width for place in range(len(results))]
        compute, exposed = ([result[f"{part}_seconds"] for result in results.values()] for part in ("compute", "exposed"))
        axes.bar(at, compute, 0.92 * width, edgecolor=FAINT, **COMPUTES, label="computes" if number == 0 else None)
        axes.bar(at, exposed, 0.92 * width, bottom=compute, edgecolor=FAINT, **WAITS,
                 label="stands still, waits for the network" if number == 0 else None)
        for place, one, other in zip(at, compute, exposed, strict=True):
            axes.annotate(f"{one + other:.2f}", (place, one + other), (0, 3), textcoords="offset points", ha="center", fontsize=8)
            axes.annotate(letter, (place, 0), (0, 4), textcoords="offset points", ha="center", fontsize=8, weight="bold")
        axes.plot([], [], " ", label=f"{letter}: {name}" if letter else name)
        said.append(f"{name}: " + ", ".join(f"{one + other:.2f} s on {ranks:,} ranks, in {other:.2f} s of which it stands still"
                                           for ranks, one, other in zip(results, compute, exposed, strict=True)))
    ranks = next(iter(ways.values()))
    axes.set(xticks=range(len(ranks)), xticklabels=[f"{each:,}" for each in ranks], xlabel="ranks", ylabel="seconds of a step",
             title=title)
    axes.margins(y=0.12)
    axes.legend(fontsize=8, loc="upper left")
    figure.set_label(f"{title}. {'; '.join(said)}.")
    return figure
