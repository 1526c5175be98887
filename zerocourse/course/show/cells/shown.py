"""What a cell shows: one thing in the forms from which a host chooses, and a figure as such a thing."""

from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from ....errors import BadInput
from ....measure.drawn.image import image, picture
from ....measure.drawn.png import png_of, png_of_svg


@dataclass(frozen=True, repr=False)
class Shown:
    """One thing to show, in forms from which a notebook chooses. text: also the alternative text of the picture.

    svg: shown as a PNG, because hosts may drop SVG.   width: of a PNG on the page, in CSS pixels;
    None: half of its own.
    """

    text: str
    html: str | None = None
    png: bytes | None = None
    svg: str | None = None
    width: int | None = None
    markdown: str | None = None

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data = {"text/plain": self.text}
        if self.html is not None:
            data["text/html"] = self.html
        if self.markdown is not None:
            data["text/markdown"] = self.markdown
        if self.svg is not None:
            data |= picture(png_of_svg(self.svg, self.text), self.text)
        if self.png is not None:
            data["text/html"] = image(self.png, self.text, self.width)
        return data, {}


def put(shown: Shown) -> None:
    """Show it where a cell is at: a notebook draws it, and elsewhere its text is printed."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return print(shown)
    display(shown) if get_ipython() else print(shown)


def figure(drawn: "Figure | Shown", alt: str = "", dpi: float = 200) -> Shown:
    """A figure as a PNG; a picture that is an SVG stays one. alt: what it shows, in words and numbers, for readers who do not see it; by default the
    figure's own label, which the function that draws it has set (`figure.set_label`).   dpi: dots per inch; it is shown
    with 100 CSS pixels per inch.

    `alt` is stored where hosts look for it: in the image's HTML, the output's plain text and the PNG's own description.
    """
    alt = alt or (drawn.text if isinstance(drawn, Shown) else drawn.get_label())
    if len(alt.split()) < 4:
        raise BadInput(f"alt is {alt!r}: say in a sentence what the figure shows")
    if isinstance(drawn, Shown):
        return replace(drawn, text=alt)
    return Shown(alt, png=png_of(drawn, alt, dpi), width=round(100 * drawn.get_figwidth()))
