"""Figures of activations: bytes through a step, and where blocks of memory lie in an arena."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ....activations import Arena
from ....errors import OutOfMemory
from ...show.figures import panels
from ...show.palette import FAINT, INK, MEANINGS
from .activation_trial import Step

MB = 1e6


def memory_curves(steps: Mapping[str, Step], one_scale: bool = True) -> Figure:
    """A panel for each step, on the same axes if `one_scale`: the bytes that it has allocated, gradients above all else."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    highest = max(map(sum, (both for step in steps.values() for both in zip(*step.curve(), strict=True)))) / MB
    said = []
    panels = figure.subplots(1, len(steps), sharey=one_scale, squeeze=False)[0]
    for axes, (name, step) in zip(panels, steps.items(), strict=True):
        gradients, others = step.curve()
        total = [one + other for one, other in zip(gradients, others, strict=True)]
        at = max(range(len(total)), key=total.__getitem__)
        place = range(len(total))
        for low, high, kind in (([0] * len(total), others, "activations"), (others, total, "gradients")):
            meaning = MEANINGS[kind]
            axes.fill_between(place, [each / MB for each in low], [each / MB for each in high], facecolor=meaning.color,
                              hatch=meaning.mpl_hatch, edgecolor="#55555588", linewidth=0.3, step="post",
                              label=kind if kind == "gradients" else "activations, temporary tensors")
        axes.axvline(step.forward, color=INK, linewidth=1, linestyle="--")
        axes.plot([at], [total[at] / MB], "v", color=INK, markersize=6)
        axes.annotate(f"{total[at] / MB:.1f} MB", (at, total[at] / MB), (0, 7), textcoords="offset points", ha="center",
                      fontsize=9, bbox={"color": "white", "alpha": 0.85, "pad": 0.6})
        axes.set(title=name, xlabel="allocations and frees, in order")
        axes.title.set_fontsize(10)
        axes.set_ylim(0, (highest if one_scale else total[at] / MB) * 1.16)
        said.append(f"{name}: {total[step.forward] / MB:.1f} MB when the forward ends, at most "
                    f"{total[at] / MB:.1f} MB, which is event {at} of {len(total)}, {gradients[-1] / MB:.1f} MB of gradients at the end")
    first = figure.axes[0]
    first.set_ylabel("MB that the step has allocated")
    figure.legend(*first.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=2)
    figure.set_label("Bytes through a forward and its backward, which begins at the dashed line. "
                     + "; ".join(said) + ".")
    return figure


def arena_map(step: Step, size: int, apart: bool = False, title: str = "") -> Figure:
    """Left where each block lies, over the step. Right what is free at the end, or where a block did not fit."""
    figure, (places, moment) = panels(9, 4.4, 1, 2, width_ratios=(6, 1), sharey=True)
    arena, drawn, error = Arena(size, apart), {"long": [], "short": []}, None
    begun, at = {}, 0
    for at, event in enumerate(step.events):
        try:
            if event.nbytes:
                begun[event.key] = at, arena.allocate(event), "long" if event.long else "short"
            elif event.key in begun:
                close(drawn, begun.pop(event.key), at)
                arena.free(event.key)
        except OutOfMemory as ended:
            error = str(ended)
            break
    for block in begun.values():
        close(drawn, block, at + 1)
    style = {"long": {"facecolor": MEANINGS["activations"].color, "hatch": "||||"}, "short": {"facecolor": "#d5d5d5"}}
    for kind, boxes in drawn.items():
        places.add_collection(PatchCollection(boxes, edgecolor="#44444499", linewidth=0.4, **style[kind]))
    places.axvline(step.forward, color=INK, linewidth=1, linestyle="--")
    places.set(xlim=(0, len(step.events)), ylim=(0, size / MB), ylabel="place in the arena, MB",
               xlabel="allocations and frees, in order; the backward begins at the dashed line", title=title)
    figure.legend(handles=[Rectangle((0, 0), 1, 1, label=label, edgecolor="#444444", linewidth=0.5, **style[kind])
                           for kind, label in (("long", "long-lived"), ("short", "short-lived"))],
                  fontsize=8, loc="outside lower center", ncols=2)
    holes(moment, arena)
    moment.set_title("out of memory" if error else "at the end", fontsize=10)
    figure.set_label(f"{title or 'An arena'}: {size:,} bytes, {len(drawn['long'])} long-lived and "
                     f"{len(drawn['short'])} short-lived blocks. " + (f"At event {at} of {len(step.events)}, {error}." if error else
                                    f"All {len(step.events)} events fit; at most {arena.peak:,} bytes are in use."))
    return figure


def close(drawn: dict[str, list], block: tuple, at: int) -> None:
    """A block's life and place become a box."""
    since, (start, stop), kind = block
    drawn[kind].append(Rectangle((since, start / MB), at - since, (stop - start) / MB))


def holes(axes: Axes, arena: Arena) -> None:
    """What is in use now, in grey, and the largest holes with their bytes."""
    for start, stop in arena.blocks.values():
        axes.add_patch(Rectangle((0, start / MB), 1, (stop - start) / MB, facecolor="#8a8a8a", edgecolor="#555555",
                                 linewidth=0.3))
    free = arena.holes()
    largest = max((stop - start for start, stop in free), default=0)
    for start, stop in free:
        axes.add_patch(Rectangle((0, start / MB), 1, (stop - start) / MB, facecolor="white", edgecolor=INK, linewidth=1))
        if stop - start >= largest / 2:
            axes.annotate(f"{(stop - start) / 1000:,.0f} kB free", (1.05, (start + stop) / 2 / MB), fontsize=8,
                          va="center", annotation_clip=False, color=INK)
    axes.set(xlim=(0, 2.6), xticks=[])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_color(FAINT)
        axes.spines[side].set_linewidth(0.3)
