"""Figures of the disk: what is read, updated and written when, and how fast a tier must be."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ....formulas.efficiency import efficiency
from ...show.figures import panels
from ...show.plots_curves import STYLES
from ...show.timelines import WIDTH, WORDS, draw_lanes, legend, thin_hatches


@thin_hatches
def io_lanes(steps: Mapping[str, Sequence[dict]]) -> Figure:
    """The lanes of rank 0 in steps, by name, one below the other on one time axis."""
    figure = Figure(figsize=(WIDTH, 0.9 + 1.5 * len(steps)), layout="constrained")
    rows = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    starts = {name: min(event["start"] for event in events) for name, events in steps.items()}
    spans = {name: max(event["end"] for event in events) - starts[name] for name, events in steps.items()}
    longest = 1e3 * max(spans.values())
    rows[-1].set(xlim=(-0.005 * longest, 1.02 * longest), xlabel="milliseconds since the step began")
    for axes, (name, events) in zip(rows, steps.items(), strict=True):
        draw_lanes(axes, events, 0, starts[name])
        axes.set_title(name, loc="left", fontsize=10, weight="bold")
    rows[-1].tick_params(labelbottom=True)
    legend(figure, rows)
    figure.set_label("What is read from the disk, updated and written in a step. " + " ".join(
        f"{name}: {1e3 * spans[name]:.0f} ms, in which "
        + ", ".join(f"{WORDS[verb]} takes {1e3 * busy(events, verb):.0f} ms" for verb in ("read", "step", "write"))
        + "."
        for name, events in steps.items()))
    return figure


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
    for name, bandwidth in marked.items():
        axes.axvline(bandwidth / 1e9, color="#767676", linewidth=0.8)
        axes.annotate(name, (bandwidth / 1e9, 101), fontsize=8, ha="center", va="bottom", annotation_clip=False)
        said.append(f"at {name} " + ", ".join(f"{100 * efficiency(intensity, bandwidth, peak):.0f} % for {kind}"
                                              for kind, intensity in intensities.items()))
    axes.set(xlabel="bandwidth, GB/s for each GPU", ylabel="efficiency, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    figure.set_label("The efficiency over the bandwidth: " + "; ".join(said) + ".")
    return figure
