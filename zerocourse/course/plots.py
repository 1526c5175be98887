"""Pictures of what was measured: pure functions from numbers to matplotlib figures. Nothing here computes or launches."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..formulas.states import ModelStates
from ..formulas.units import gb

KIND_COLORS = {"parameters": "#4c72b0", "gradients": "#dd8452", "optimizer": "#55a868", "the rest, at the peak": "#c7c7c7"}
VERB_COLORS = {"forward": "#9ecae1", "backward": "#fdae6b", "step": "#a1d99b", "all_gather": "#3182bd",
               "reduce_scatter": "#e6550d", "wait": "#de2d26", "reshard": "#756bb1"}


def tour_figure(modes: dict[str, list[dict]], expected: dict[str, dict[str, int]]) -> Figure:
    """What rank 0 holds and sends in each mode, beside the formulas (black lines), and the losses of all modes."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    memory, sent, losses = figure.subplots(1, 3)
    names = list(modes)
    memory_bars(memory, names, [modes[name][0] for name in names], [expected[name]["total_bytes"] for name in names])
    sent.bar(names, [modes[name][0]["sent_bytes"] / 1e6 for name in names], color="#8172b3", width=0.6)
    mark_formula(sent, [expected[name]["sent_bytes"] / 1e6 for name in names])
    sent.set(title="bytes sent a step, a rank", ylabel="MB")
    for width, (name, ranks) in zip(range(2 * len(modes), 0, -2), modes.items(), strict=True):
        mean = [sum(step) / len(ranks) for step in zip(*(rank["losses"] for rank in ranks), strict=True)]
        losses.plot(range(1, len(mean) + 1), mean, label=name, linewidth=width, alpha=0.7)
    losses.set(title="loss: the lines lie on each other", xlabel="step")
    losses.legend()
    held = ", ".join(f"{name} {gb(sum(modes[name][0][f'{kind}_bytes'] for kind in ('parameters', 'gradients', 'optimizer')))}"
                     for name in names)
    sends = ", ".join(f"{name} {gb(modes[name][0]['sent_bytes'])}" for name in names)
    figure.set_label(f"Three charts. Model states held per rank: {held}; the peak adds to that. Sent per rank and step: {sends}. "
                     "The curves of the loss lie on each other.")
    return figure


def memory_bars(axes: Axes, names: Sequence[str], ranks: Sequence[dict], formula: Sequence[int]) -> None:
    """Stacked: parameters, gradients, optimizer states, and what the peak adds to them. Bytes in, MB drawn."""
    bottom = [0.0] * len(names)
    for kind, color in KIND_COLORS.items():
        if kind in ("parameters", "gradients", "optimizer"):
            height = [rank[f"{kind}_bytes"] / 1e6 for rank in ranks]
        else:
            height = [max(0.0, rank["peak_bytes"] / 1e6 - below) for rank, below in zip(ranks, bottom, strict=True)]
        axes.bar(names, height, bottom=bottom, color=color, label=kind, width=0.6)
        bottom = [below + more for below, more in zip(bottom, height, strict=True)]
    mark_formula(axes, [nbytes / 1e6 for nbytes in formula], label="model states by formula")
    axes.set(title="bytes held, a rank", ylabel="MB", ylim=(0, max(bottom) * 1.45))
    axes.legend(fontsize=8, loc="upper right", ncols=2)


def mark_formula(axes: Axes, values: Sequence[float], label: str | None = "by formula") -> None:
    for index, value in enumerate(values):
        axes.hlines(value, index - 0.38, index + 0.38, color="black", linewidth=1.5, label=label if index == 0 else None)
    if label == "by formula":
        axes.legend(fontsize=8, loc="upper left")


def timeline(events: Sequence[dict], title: str = "") -> Figure:
    """One step: for each rank what it computed and which collectives were under way, over the curve of its live bytes.

    events: dictionaries as `events.Event` has them, of one step and any number of ranks.
    """
    ranks = sorted({event["rank"] for event in events})
    figure = Figure(figsize=(12, 1.2 + 2.3 * len(ranks)), layout="constrained")
    start = min(event["start"] for event in events)
    rows = figure.subplots(2 * len(ranks), 1, sharex=True, squeeze=False, height_ratios=[1.4, 1] * len(ranks))[:, 0]
    for index, rank in enumerate(ranks):
        lanes, alive = rows[2 * index], rows[2 * index + 1]
        mine = [event for event in events if event["rank"] == rank]
        shown = [event for event in mine if event["unit"] != "root" or event["verb"] not in ("forward", "backward")]
        for event in shown:  # the root's forward lasts as long as those of its blocks together
            lane = {"wait": 1, "all_gather": 2, "reduce_scatter": 3, "reshard": 1}.get(event["verb"], 0)
            left, width = (event["start"] - start) * 1e3, (event["end"] - event["start"]) * 1e3
            lanes.barh(lane, width, left=left, height=0.8, color=VERB_COLORS[event["verb"]], edgecolor="white", linewidth=0.3)
        idle = "wait, reshard" if any(event["verb"] == "reshard" for event in events) else "wait"
        lanes.set(yticks=range(4), yticklabels=["compute", idle, "all_gather", "reduce_scatter"], ylim=(3.6, -0.6),
                  title=f"{title} rank {rank}".strip())
        ordered = sorted(mine, key=lambda event: event["end"])
        alive.step([(event["end"] - start) * 1e3 for event in ordered], [event["alive"] / 1e6 for event in ordered], where="post")
        highest = max(ordered, key=lambda event: event["alive"])
        alive.set(ylabel="MB alive", ylim=(0, 1.3 * highest["alive"] / 1e6 or 1))
        for event, offset, place in ((highest, (0, 3), "center"), (ordered[-1], (4, 0), "left")):
            alive.annotate(f"{event['alive'] / 1e6:.1f}", ((event["end"] - start) * 1e3, event["alive"] / 1e6), offset,
                           textcoords="offset points", ha=place, va="bottom" if event is highest else "center", fontsize=8)
    rows[-1].set_xlabel("milliseconds since the step began")
    verbs = [verb for verb in VERB_COLORS if any(event["verb"] == verb for event in events)]
    handles = [rows[0].barh(0, 0, color=VERB_COLORS[verb]) for verb in verbs]
    figure.legend(handles, verbs, loc="outside lower center", ncols=len(verbs), fontsize=8)
    return figure


def live_bytes(curves: dict[str, Sequence[dict]], title: str, what: str) -> Figure:
    """Bytes alive after each event, one curve per name. The axis counts events, because stages need different times.

    In each curve the forward, if there is one, takes the left half, and the backward takes the right half.
    curves: name → events of one rank, as in `timeline`.   what: the label of the axis; its unit is MB.
    """
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, ylabel=what, xlabel="from the first event to the last", xticks=[])
    for name, events in curves.items():
        ordered = sorted(events, key=lambda event: event["end"])
        begins = min((event["start"] for event in ordered if event["verb"] == "backward"), default=float("-inf"))
        before = sum(event["end"] <= begins for event in ordered)
        known, places = ([0, before, len(ordered) - 1], [0, 0.5, 1]) if before else ([0, len(ordered) - 1], [0, 1])
        axes.step(np.interp(range(len(ordered)), known, places), [event["alive"] / 1e6 for event in ordered], where="post", label=name)
        if before:
            axes.axvline(0.5, color="grey", linewidth=1, linestyle=":", zorder=0)
            axes.set_xticks([0.25, 0.75], ["forward", "backward"])
            axes.set_xlabel("event by event")
    axes.set_ylim(0, None)
    axes.margins(x=0.01)
    axes.legend(loc="lower right")
    return figure


CARDS = {"T4": 15 * 2**30, "RTX 4090": 24 * 2**30, "A100": 40 * 2**30, "H100": 80 * 2**30, "H200": 140 * 2**30}


def smallest_card(nbytes: int) -> str | None:
    """The smallest of `CARDS` that has this much memory."""
    return next((card for card, memory in CARDS.items() if memory >= nbytes), None)


def memory_on_cards(states: Sequence[ModelStates], stage: int) -> Figure:
    """What a rank holds at stages 0 to 3, stacked, with `stage` in full colour and lines where cards' memory ends.

    `stage` has at least a tenth of the width; a bar that is longer than all of it has an arrow behind its number.
    """
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    axes = figure.subplots()
    edge = min(1.2 * states[0].total_bytes, 10 * states[stage].total_bytes)
    names = ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    for row, (held, name) in enumerate(zip(states, names, strict=True)):
        left = 0
        for kind in ("parameters", "gradients", "optimizer"):
            nbytes = getattr(held, f"{kind}_bytes")
            axes.barh(row, nbytes / 1e9, left=left / 1e9, color=KIND_COLORS[kind], height=0.62,
                      alpha=1 if row == stage else 0.35, label=kind if row == stage else None)
            left += nbytes
        beyond = left > 0.86 * edge
        axes.annotate(gb(left) + (" →" if left > edge else ""), (min(left, edge) / 1e9, row), (-5 if beyond else 5, 0),
                      textcoords="offset points", va="center", ha="right" if beyond else "left", fontsize=10,
                      weight="bold" if row == stage else "normal", bbox={"color": "white", "alpha": 0.85, "pad": 1})
    labelled = -edge
    for card, memory in CARDS.items():
        if not 0.03 * edge < memory < edge:
            continue
        axes.axvline(memory / 1e9, color="black", linewidth=1, linestyle=":", zorder=0)
        if memory - labelled > 0.07 * edge:  # so that names do not overlap
            axes.text(memory / 1e9, -0.62, card, ha="center", va="bottom", fontsize=8)
            labelled = memory
    axes.set(yticks=range(4), yticklabels=names, xlabel="GB a rank (GB = 10⁹ bytes)", xlim=(0, edge / 1e9), ylim=(3.5, -0.6))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    return figure


def timeline_until(events: Sequence[dict], moment: int, title: str = "") -> Figure:
    """`timeline` with everything after event number `moment` faded (counted from 0 in the order of their ends)."""
    figure = timeline(events, title)
    ordered = sorted(events, key=lambda event: event["end"])
    begin, now = min(event["start"] for event in events), ordered[moment]["end"]
    for axes in figure.axes:
        right = axes.get_xlim()[1]
        axes.axvspan((now - begin) * 1e3, right, color="white", alpha=0.8, zorder=2.2)  # above the lines, below the frame
        axes.axvline((now - begin) * 1e3, color="black", linewidth=1, zorder=2.3)
        axes.set_xlim(right=right)
    return figure
