"""The roofline of some GPUs, and where kernels stand below it (Williams, Waterman and Patterson 2009, Communications of the ACM 52(4)).

A kernel that does I operations for each byte that it moves can do at most min(peak, I · bandwidth) operations a second.
"""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import INK
from ...show.plots_curves import STYLES

# Operations a second of the matrix units in half precision, without sparsity, and bytes a second of the memory, from NVIDIA's data sheets
# (T4; A100 40 GB PCIe; H100 SXM5).
CARDS = {"T4": (65e12, 320e9), "A100": (312e12, 1555e9), "H100": (989e12, 3350e9)}


def ridge(card: str) -> float:
    """Operations a byte above which a kernel waits for the processors and not for the memory."""
    peak, bandwidth = CARDS[card]
    return peak / bandwidth


def roofline(kernels: Mapping[str, float], title: str) -> Figure:
    """kernels: name → operations a byte; each is a line down from the roofs."""
    figure, axes = panels(8, 4.4)
    left, right = 0.1, 10 * max(kernels.values())
    for (name, (peak, bandwidth)), (colour, mark, dashes) in zip(CARDS.items(), STYLES, strict=False):
        at = [left, ridge(name), right]
        axes.plot(at, [min(peak, each * bandwidth) / 1e12 for each in at], color=colour, marker=mark, markersize=5, linestyle=dashes,
                  label=f"{name}: from {ridge(name):.0f} operations a byte on it computes all the time")
    for number, (name, intensity) in enumerate(kernels.items()):
        axes.axvline(intensity, color=INK, linewidth=1, linestyle=(0, (1, 3)), gid=name)
        axes.annotate(name, (intensity, 0.02 * 3.2 ** (number % 3)), (3, 0), textcoords="offset points", fontsize=9)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(0.01, 3000), title=title, xlabel="operations for each byte that is moved",
             ylabel="10¹² operations a second, at most")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", fontsize=8)
    said = ", ".join(f"{name} {intensity:.3g}" for name, intensity in kernels.items())
    roofs = ", ".join(f"{name} {ridge(name):.0f}" for name in CARDS)
    return described(figure, f"Operations a byte: {said}. From so many on a card computes all the time: {roofs}.")
