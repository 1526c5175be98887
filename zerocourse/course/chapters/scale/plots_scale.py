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
def peaks_over_ranks(columns: Mapping[str, Mapping[int, Mapping]], divided: Mapping[int, int]) -> Figure:
    """The peak of a step over the number of ranks, both axes logarithmic, and below it of what it consists, in shares of it.

    What N does not divide lies at the bottom of the shares, so that its upper edge says how much of the peak stays.
    columns: name → {ranks: what was simulated}.   divided: ranks → all model states over N, a dashed line.
    """
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    said, rows = [], figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 2))
    for peaks, shares, (name, results) in zip(*rows, columns.items(), strict=True):
        at, parts = list(results), [parts_of_peak(result) for result in results.values()]
        total = [sum(each.values()) for each in parts]
        peaks.plot(at, [nbytes / GB for nbytes in total], color=INK, linewidth=1.5, marker="o", markersize=3, label="the peak of a step")
        peaks.plot(list(divided), [nbytes / GB for nbytes in divided.values()], color=INK, linestyle="--", linewidth=1.2,
                   label="all model states over N")
        peaks.set(xscale="log", yscale="log", xlim=(at[0], at[-1]), ylim=(min(divided.values()) / GB / 2, 2.2 * max(total) / GB), title=name)
        peaks.yaxis.set_major_formatter("{x:g}")
        for ranks, nbytes in ((at[0], total[0]), (at[-1], total[-1])):
            peaks.annotate(gb(nbytes), (ranks, nbytes / GB), (3 if ranks == at[0] else -3, 5), textcoords="offset points",
                           ha="left" if ranks == at[0] else "right", fontsize=9, weight="bold")
        shares.stackplot(at, *([100 * each[kind] / whole for each, whole in zip(parts, total, strict=True)] for kind in AT_THE_PEAK),
                         labels=list(AT_THE_PEAK))
        for area, meaning in zip(shares.collections, AT_THE_PEAK.values(), strict=True):
            area.set(**look(meaning))
        shares.set(ylim=(0, 100), xlabel="ranks, N")
        shares.set_xticks(at[::2], [f"{ranks:,}" for ranks in at[::2]], fontsize=8)
        shares.minorticks_off()
        peaks.minorticks_off()
        last = ", ".join(f"{kind} {gb(nbytes)}" for kind, nbytes in parts[-1].items())
        said.append(f"{name}: {gb(total[0])} on {at[0]} rank, {gb(total[-1])} on {at[-1]:,} ({last})")
    rows[0][0].set_ylabel("GB per rank")
    rows[1][0].set_ylabel("% of the peak")
    handles, labels = (above + below for above, below in zip(*(row[0].get_legend_handles_labels() for row in rows), strict=True))
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.set_label(f"The peak of a step over the number of ranks, and its parts. {'; '.join(said)}. "
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
