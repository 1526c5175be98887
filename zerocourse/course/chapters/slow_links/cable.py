"""What ways to train send over a slow cable between two nodes, measured on the wire, and drawn in true sizes.

Recorded, because not every machine can have such a cable: `python -m zerocourse.bench.slow_nodes --record` does it again.
"""

from collections.abc import Mapping

from ....measure.recorded import Recorded
from ...show import Shown
from ...show.palette import FAINT
from ...show.pictures import svg

PARTS = {"forward": "parameters", "backward": "in flight", "gradients": "gradients"}  # of what a node sends, by how it is drawn
LEFT, TOP, ROW, WIDE, SECOND = 88.0, 48.0, 46.0, 190.0, 290.0  # units


def true_sizes(ways: Mapping[str, Mapping[str, float]]) -> Shown:
    """Bars of what a rank holds, and of what a node sends to the other one.

    ways: name → "held", bytes for each parameter; "forward", "backward" and "gradients", by formula, and "wire", as measured,
    all four over Ψ.
    """
    drawing = svg.Drawing(svg.WIDTH, TOP + ROW * len(ways) + 40)
    drawing.text(LEFT, 16, "a rank holds", bold=True)
    drawing.text(LEFT, 34, "bytes for each parameter", size=12, color=FAINT)
    drawing.text(LEFT + SECOND, 16, "a node sends over the cable", bold=True)
    drawing.text(LEFT + SECOND, 34, "in a step, over Ψ; thick line: as measured", size=12, color=FAINT)
    most = max(way["held"] for way in ways.values())
    longest = max(sum(way[part] for part in PARTS) for way in ways.values())
    said = []
    for row, (name, way) in enumerate(ways.items()):
        y = TOP + ROW * row
        drawing.text(0, y + 20, name, size=14)
        drawing.rect(LEFT, y, WIDE * way["held"] / most, ROW - 18, "optimizer", data={"way": name, "held": f"{way['held']:g}"})
        drawing.text(LEFT + WIDE * way["held"] / most + 6, y + 20, f"{way['held']:g}", size=13)
        x = LEFT + SECOND
        for part, kind in PARTS.items():
            wide = WIDE * way[part] / longest
            if wide:
                drawing.rect(x, y, wide, ROW - 18, kind, data={"way": name, "part": part, "psi": f"{way[part]:g}"})
            x += wide
        line = LEFT + SECOND + WIDE * way["wire"] / longest
        drawing.line(line, y - 5, line, y + ROW - 13, width=3)
        drawing.text(max(x, line) + 6, y + 20, f"{way['wire']:.2f}", size=13)
        said.append(f"{name}: a rank holds {way['held']:g} bytes for each parameter, and a node sends "
                    + ", ".join(f"{way[part]:g} Ψ in the {part}" if part != "gradients" else f"{way[part]:g} Ψ for the gradients" for part in PARTS)
                    + f", measured {way['wire']:.2f} Ψ")
    drawing.legend(LEFT + SECOND, TOP + ROW * len(ways) + 6, list(PARTS.values()), {kind: part for part, kind in PARTS.items()})
    words = "; ".join(said) + "."
    return Shown(words, svg=svg.still(drawing, "What is held and what crosses the cable", words))


recorded = Recorded(__file__, "recorded_cable")
"""As `slow_nodes.measure` returned it, by way."""
