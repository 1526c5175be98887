"""Figures of the disk: what is read, updated and written when, and how fast a tier must be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from ....formulas.time.efficiency import efficiency
from ...show import Shown
from ...show.figures import panels
from ...show.plots_curves import STYLES
from ...show.timelines import MOVES, compare

WORDS = MOVES | {"step": "optimizer's step"}


def io_lanes(steps: Mapping[str, Sequence[dict]]) -> Shown:
    """The lanes of rank 0 in steps, by name, one below the other on one time axis."""
    spans = {name: max(event["end"] for event in events) - min(event["start"] for event in events) for name, events in steps.items()}
    words = "What is read from the disk, updated and written in a step. " + " ".join(
        f"{name}: {1e3 * spans[name]:.0f} ms, in which "
        + ", ".join(f"{WORDS[verb]} takes {1e3 * busy(events, verb):.0f} ms" for verb in ("read", "step", "write"))
        + "."
        for name, events in steps.items())
    return replace(compare(steps, alive=False), text=words)


def busy(events: Sequence[dict], verb: str) -> float:
    """Seconds of the events of one verb together."""
    return sum(event["end"] - event["start"] for event in events if event["verb"] == verb)


def efficiency_curves(intensities: Mapping[str, float], peak: float, marked: Mapping[str, float]) -> Figure:
    """The efficiency over the bandwidth in bytes per second, a curve for each kind of data.

    intensities: operations per byte, by name.   marked: name → bandwidth, a vertical line each.
    """
    (figure, axes), said = panels(8, 3.6), []
    bandwidths = [10 ** (8 + index / 20) for index in range(101)]
    for (name, intensity), (colour, _, dashes) in zip(intensities.items(), STYLES, strict=False):
        reached = [100 * efficiency(intensity, each, peak) for each in bandwidths]
        axes.semilogx([each / 1e9 for each in bandwidths], reached, color=colour, linestyle=dashes, label=name)
    for number, (name, bandwidth) in enumerate(marked.items()):
        axes.axvline(bandwidth / 1e9, color="#767676", linewidth=0.8)
        axes.annotate(name, (bandwidth / 1e9, 101 + 7 * (number % 2)), fontsize=8, ha="center", va="bottom", annotation_clip=False)
        said.append(f"at {name} " + ", ".join(f"{100 * efficiency(intensity, bandwidth, peak):.0f} % for {kind}"
                                              for kind, intensity in intensities.items()))
    axes.set(xlabel="bandwidth, GB/s for each GPU", ylabel="efficiency, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    figure.set_label("The efficiency over the bandwidth: " + "; ".join(said) + ".")
    return figure
