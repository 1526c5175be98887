"""What colours mean, from the first picture of the course to the last, in matplotlib's figures and in SVG.

The colours are those of Okabe and Ito (2008), which people with any kind of colour blindness tell apart. Because a
picture may also be printed in grey, a meaning is never a colour alone: each has a hatching, and a letter for legends.
"""

from dataclasses import dataclass

INK, FAINT = "#222222", "#767676"  # of lines and words: what matters, and what stands back (contrast 4.5 on white)


@dataclass(frozen=True)
class Meaning:
    """color: #rrggbb.   hatch: none, diagonal, dots, horizontal, vertical or crossed.   letter: one, for narrow places."""

    color: str
    hatch: str
    letter: str

    @property
    def mpl_hatch(self) -> str:
        """The hatching in matplotlib's language."""
        return {"none": "", "diagonal": "//", "dots": "..", "horizontal": "--", "vertical": "||", "crossed": "xx"}[self.hatch]

    @property
    def luminance(self) -> float:
        """How bright it is in grey, from 0 (black) to 1 (white): the relative luminance of WCAG 2."""
        channels = [int(self.color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue


MEANINGS = {"parameters": Meaning("#0072b2", "none", "P"),
            "gradients": Meaning("#e69f00", "diagonal", "G"),
            "optimizer": Meaning("#009e73", "dots", "O"),
            "in flight": Meaning("#cc79a7", "horizontal", "F"),
            "activations": Meaning("#f0e442", "vertical", "A"),
            "padding": Meaning("#e4e4e4", "crossed", "–")}
