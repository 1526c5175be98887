"""Pictures of gradients beside the range of fp16, of losses beside those in fp32, and of a loss scale's life. They draw, and compute nothing else."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure

from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import FAINT, INK
from ...show.plots_curves import STYLES

LEAST, NORMAL, MOST = 2.0**-24, 2.0**-14, 65504.0  # fp16: its smallest number, its smallest with all bits, its largest


def gradient_histogram(groups: Mapping[str, torch.Tensor], scales: Mapping[str, float]) -> Figure:
    """One panel a scale: how the sizes of gradients lie in the range of fp16, a line for each group of gradients.

    groups: name → gradients of any shape, in fp32.   scales: title → factor.
    """
    figure = Figure(figsize=(8, 2.5 * len(scales)), layout="constrained")
    panels, said = figure.subplots(len(scales), sharex=True, squeeze=False)[:, 0], []
    edges = torch.arange(-50.0, 26.0, 1.0)
    for axes, (title, scale) in zip(panels, scales.items(), strict=True):
        for (name, values), (colour, _, dashes) in zip(groups.items(), STYLES, strict=False):
            sizes = (values.flatten().double() * scale).abs()
            powers = sizes[sizes > 0].log2().clamp(edges[0].item(), edges[-1].item() - 1e-6)
            share = 100 * torch.histc(powers.float(), len(edges) - 1, edges[0].item(), edges[-1].item()) / len(sizes)
            axes.stairs(share.tolist(), [2.0**edge for edge in edges.tolist()], color=colour, linestyle=dashes,
                        linewidth=2, label=name)
            zero = (sizes <= LEAST / 2).double().mean().item()
            said.append(f"{title}, {name}: {zero:.1%} below half of fp16's smallest number")
        axes.axvspan(2.0**-50, LEAST / 2, facecolor="#eeeeee", edgecolor=FAINT, hatch="//", linewidth=0, zorder=0)
        axes.axvspan(MOST, 2.0**25, facecolor="#eeeeee", edgecolor=FAINT, hatch="xx", linewidth=0, zorder=0)
        axes.axvline(NORMAL, color=INK, linewidth=1, linestyle=":")
        axes.set(xscale="log", xlim=(2.0**-50, 2.0**25), ylabel="% of the values", title=title)
        top = axes.get_ylim()[1] * 1.25
        axes.set_ylim(0, top)
        for place, words in ((2.0**-38, "becomes 0"), (2.0**-19, "loses bits"), (2.0**1, "all bits"),
                             (2.0**20.5, "inf")):
            axes.text(place, 0.97 * top, words, ha="center", va="top", fontsize=9, color=INK,
                      bbox={"color": "white", "alpha": 0.9, "pad": 1})
    panels[0].legend(fontsize=9, loc="center right", bbox_to_anchor=(0.93, 0.45))
    panels[-1].set_xlabel("size of the gradient")
    figure.set_label(f"Sizes of gradients in the range of fp16. {'; '.join(said)}.")
    return figure


def scale_life(scales: Sequence[float], skipped: Sequence[bool], rates: Sequence[float]) -> Figure:
    """The loss scale under which each step ran, × where the step was skipped, and below it the learning rate."""
    figure, (above, below) = panels(8, 4, 2, sharex=True, height_ratios=(3, 1))
    steps, lost = range(len(scales)), [step for step, skip in enumerate(skipped) if skip]
    above.step(steps, scales, where="mid", color=INK)
    above.plot(lost, [scales[step] for step in lost], "X", color="#8172b3", markersize=9, linestyle="",
               label="overflow, step skipped")
    above.set_yscale("log", base=2)
    above.set(ylabel="loss scale", title="The life of a loss scale")
    above.legend(fontsize=9)
    below.step(steps, rates, where="mid", color=INK)
    for step in lost:
        below.axvline(step, color=FAINT, linewidth=1, linestyle=":")
    below.set(ylabel="learning rate", xlabel="step")
    return described(figure, "The learning rate falls in every step but those that are skipped.")


def losses_above(lines: Mapping[str, Sequence[float]], other: str, title: str, over: int = 5) -> Figure:
    """How far each line lies above the line `other`, which would hide those that are near it. Means of `over` steps."""
    def mean(losses: Sequence[float], at: int) -> float:
        return sum(losses[at : at + over]) / over

    starts = range(0, len(lines[other]) - over + 1, over)
    above = {name: [mean(losses, at) - mean(lines[other], at) for at in starts] for name, losses in lines.items() if name != other}
    figure, axes = panels(8, 3.4)
    for (name, heights), (colour, mark, dashes) in zip(above.items(), STYLES, strict=False):
        axes.plot([at + over for at in starts], heights, color=colour, marker=mark, markersize=4, linestyle=dashes, label=name)
    axes.axhline(0, color=FAINT, linewidth=1)
    axes.set(title=title, xlabel="step", ylabel=f"loss above that in {other}")
    axes.legend(fontsize=9)
    return described(figure)
