"""Formats of floating-point numbers as torch has them, and pictures of their bits and of the gaps between numbers."""

from dataclasses import dataclass
from math import floor, log2

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...show.figures import panels
from ...show.palette import FAINT, INK
from ...show.plots_curves import STYLES


@dataclass(frozen=True)
class NumberFormat:
    """exponent, fraction: how many bits each has, beside the one of the sign."""

    name: str
    dtype: torch.dtype
    exponent: int
    fraction: int

    @property
    def most(self) -> float:
        """The largest finite number."""
        return torch.finfo(self.dtype).max

    @property
    def least(self) -> float:
        """The smallest number above 0, where only the last bit of the fraction is 1."""
        return torch.finfo(self.dtype).smallest_normal * 2.0**-self.fraction

    def gap(self, value: float) -> float:
        """From a value above 0 to the next larger number of this format."""
        return max(2.0 ** (floor(log2(value)) - self.fraction), self.least)

    def bits(self, value: float) -> str:
        """The bits of the nearest number, the sign first."""
        size = self.dtype.itemsize
        whole = torch.tensor(value).to(self.dtype).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[size]).item()
        return format(whole % 2 ** (8 * size), f"0{8 * size}b")


FORMATS = (NumberFormat("fp32", torch.float32, 8, 23), NumberFormat("fp16", torch.float16, 5, 10),
           NumberFormat("bf16", torch.bfloat16, 8, 7), NumberFormat("fp8 e4m3", torch.float8_e4m3fn, 4, 3),
           NumberFormat("fp8 e5m2", torch.float8_e5m2, 5, 2))
PARTS = {"sign": "#ffffff", "exponent": "#d4d4d4", "fraction": "#ffffff"}


def bits_figure(value: float, formats=FORMATS) -> Figure:
    """The bits that each format has for `value`, sign, exponent (grey) and fraction apart."""
    (figure, axes), said = panels(9, 0.62 * len(formats) + 0.5), []
    for row, kind in enumerate(formats):
        bits, at = kind.bits(value), 0
        for part, width in (("sign", 1), ("exponent", kind.exponent), ("fraction", kind.fraction)):
            for place in range(at, at + width):
                axes.add_patch(Rectangle((place, row), 1, 0.64, facecolor=PARTS[part], edgecolor=FAINT, linewidth=0.8))
                axes.text(place + 0.5, row + 0.32, bits[place], ha="center", va="center", fontsize=10, color=INK)
            if part != "sign":
                axes.text(at + width / 2, row + 0.84, f"{width} {part}", ha="center", va="center", fontsize=8,
                          color=INK)
                axes.vlines(at, row - 0.08, row + 0.72, color=INK, linewidth=2)
            at += width
        stored = torch.tensor(value).to(kind.dtype).float().item()
        axes.text(-0.4, row + 0.32, kind.name, ha="right", va="center", fontsize=10, weight="bold", color=INK)
        axes.text(at + 0.4, row + 0.32, f"= {stored:.8g}", ha="left", va="center", fontsize=10, color=INK)
        said.append(f"{kind.name} has {kind.exponent} bits of exponent and {kind.fraction} of fraction and "
                    f"stores {stored:.8g}")
    axes.set(xlim=(-4.2, 39), ylim=(len(formats) + 0.05, -0.15))
    axes.axis("off")
    figure.set_label(f"The bits of {value:g}: {'; '.join(said)}.")
    return figure


def gaps_figure(formats=FORMATS[:4]) -> Figure:
    """How far apart neighbouring numbers are, in percent of their size, over the range that each format has."""
    (figure, axes), said = panels(8, 3.8), []
    for kind, (colour, mark, dashes) in zip(formats, STYLES, strict=False):
        at = [2.0**power for power in range(floor(log2(kind.least)), floor(log2(kind.most)) + 1)] + [kind.most]
        heights = [100 * kind.gap(value) / value for value in at]
        axes.plot(at, heights, color=colour, linestyle=dashes, linewidth=2, label=kind.name)
        axes.plot([at[0], at[-1]], [heights[0], heights[-1]], mark, color=colour, markersize=6)
        said.append(f"{kind.name} from {kind.least:.1e} to {kind.most:.3g}, where neighbours are "
                    f"{100 * 2.0**-kind.fraction:.2g} percent apart at best")
    axes.set(xscale="log", yscale="log", xlabel="size of the number", ylabel="gap to the next, in % of it",
             title="What a format can tell apart, and where it ends")
    axes.set(xlim=(1e-46, 1e40), ylim=(None, 2000))
    axes.legend(fontsize=9, ncols=4, loc="upper center")
    figure.set_label(f"{axes.get_title()}. {'; '.join(said)}.")
    return figure
