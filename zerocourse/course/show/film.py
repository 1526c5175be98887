"""What moves: frames that follow each other, each with a caption, in every form that a page may need.

    film = Film("A ring adds up a buffer", [Frame(drawing, "Each rank sends one part to the right."), ...])
    film                  in a notebook: a player with play, step and a slider
    film.animation()      an SVG that moves, for a README or a site
    film.page()           a file of HTML that can be sent

In a notebook a film is HTML with a script, which plays with a kernel and without one. Where a host takes scripts away,
the key frames are what is left, one after the other as PNG, each with its caption. A host that shows no HTML shows the
same strip of key frames as one PNG.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ...errors import BadInput
from ...measure.drawn.image import image, picture
from ...measure.drawn.png import png_of_svg
from .pictures import svg

SCRIPT = Path(__file__).with_name("film.js")
PAGE = "body{font:15px/1.4 Helvetica,Arial,sans-serif;max-width:1400px;margin:16px auto;padding:0 12px;color-scheme:light dark}"
CAPTION = 14.5  # units: of the words above an animation's frames


@dataclass(frozen=True)
class Frame:
    """One picture of a film, and what one sees on it, in one or two sentences. name: of the moment, a few words.

    line: the number of the line of the film's code that runs at this moment, counted from 0.
    """

    drawing: svg.Drawing
    caption: str
    name: str = ""
    line: int | None = None

    @property
    def words(self) -> str:
        return f"{self.name}. {self.caption}" if self.name else self.caption


@dataclass(frozen=True, repr=False)
class Film:
    """title: what moves.   words: what the whole film shows, for who does not see it.   seconds: of a frame.

    under: what is seen below every frame.   keys: the numbers of the frames that a page without scripts shows; none
    given: all of them.   start: the number of the frame at which the player stands first.   code: shown beside
    the pictures, with the line of each frame marked. Raises BadInput without
    frames, for a frame without a caption, and for a key that is no frame.
    """

    title: str
    frames: Sequence[Frame]
    words: str = ""
    seconds: float = 2.0
    under: svg.Drawing | None = None
    keys: Sequence[int] = ()
    start: int = 0
    code: str = ""

    def __post_init__(self):
        if not self.frames:
            raise BadInput(f"the film {self.title!r} has no frames: it needs at least one")
        if wrong := [number for number, frame in enumerate(self.frames) if not frame.caption]:
            raise BadInput(f"frame {wrong[0]} of the film {self.title!r} has no caption: say in a sentence what one sees")
        if wrong := set(self.keys) - set(range(len(self.frames))):
            raise BadInput(f"the film {self.title!r} has {len(self.frames)} frames, and no frame {min(wrong)}")

    def __repr__(self) -> str:
        return "\n".join([self.text, *map(self.said, self.shown)])

    @property
    def text(self) -> str:
        return self.words or f"{self.title}, in {len(self.frames)} frames."

    @property
    def shown(self) -> Sequence[int]:
        """The numbers of the key frames."""
        return sorted(self.keys) or range(len(self.frames))

    def said(self, number: int) -> str:
        """A frame in words."""
        return f"{number + 1} of {len(self.frames)}: {self.frames[number].words}"

    def whole(self, number: int) -> svg.Drawing:
        """A frame on what is below every frame."""
        drawing = self.frames[number].drawing
        below = self.under.parts if self.under else []
        whole = svg.Drawing(drawing.width, drawing.height)
        whole.parts = [*below, *drawing.parts]
        return whole

    def still(self, number: int) -> str:
        """One frame as an SVG, without its caption."""
        return svg.still(self.whole(number), self.title, self.said(number))

    def animation(self) -> str:
        """An SVG that begins again and again, its captions above the frames."""
        frames = [captioned(frame, self.frames, number) for number, frame in enumerate(self.frames)]
        room = frames[0].height - self.frames[0].drawing.height
        under = svg.Drawing(frames[0].width, frames[0].height)
        if self.under:
            under.put(self.under, 0, room)
        return svg.animated(frames, self.seconds, self.title, self.text, under)

    @property
    def size(self) -> tuple[float, float]:
        """The width and the height of the largest frame."""
        return max(frame.drawing.width for frame in self.frames), max(frame.drawing.height for frame in self.frames)

    def html(self) -> str:
        """The key frames one after the other, which the script that follows them makes into a player of all frames."""
        said = list(map(self.said, range(len(self.frames))))
        wide, high = self.size
        figures = "".join(f'<figure style="display:inline-block; vertical-align:top; width:{wide + 16:g}px; max-width:100%; margin:0 8px 16px 0">'
                          f"{image(png_of_svg(self.still(number), said[number]), said[number])}"
                          f"<figcaption>{escape(said[number])}</figcaption></figure>" for number in self.shown)
        inside = json.dumps({"title": self.title, "seconds": self.seconds, "width": wide, "height": high, "start": self.start,
                             "under": "".join(self.under.parts if self.under else []), "captions": said, "code": self.code,
                             "lines": [frame.line for frame in self.frames],
                             "frames": ["".join(frame.drawing.parts) for frame in self.frames]}).replace("<", r"\u003c")
        return (f'<div data-film="" data-lm-suppress-shortcuts="true"><div><b>{escape(self.title)}</b></div>{figures}'
                f'<script type="application/json">{inside}</script></div><script>{SCRIPT.read_text()}</script>')

    def page(self) -> str:
        """A whole page with the player, which plays by itself wherever it is opened: it asks nothing of a network."""
        return page_of(self.title, f"<p>{escape(self.text)}</p>{self.html()}")

    def strip(self) -> str:
        """The key frames as one SVG, each below its caption."""
        columns = max(1, svg.WIDTH // round(self.size[0]))
        return svg.strip([captioned(Frame(self.whole(number), self.frames[number].caption, self.frames[number].name), self.frames, number)
                          for number in self.shown], self.title, self.text, columns=columns)

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        return picture(png_of_svg(self.strip(), self.text), self.text) | {"text/plain": repr(self), "text/html": self.html()}, {}


def page_of(title: str, inside: str) -> str:
    """A page with a player's `html`, in the colours in which films are drawn."""
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{escape(title)}</title><style>{PAGE}</style></head><body>{inside}</body></html>\n")


def captioned(frame: Frame, frames: Sequence[Frame], number: int) -> svg.Drawing:
    """A frame below its caption, with as much room for words as the longest caption of the film takes."""
    wide = max(each.drawing.width for each in frames)
    lines = max(sum(1 for _ in svg.broken(each.caption, wide / CAPTION)) for each in frames)
    named = any(each.name for each in frames)
    room = 24 * named + 1.3 * CAPTION * lines + 14
    whole = svg.Drawing(wide, room + max(each.drawing.height for each in frames))
    whole.text(wide - 2, 16, f"{number + 1} of {len(frames)}", size=12, anchor="end", color=svg.FAINT)
    if named:
        whole.text(0, 17, frame.name, size=17, bold=True)
    whole.paragraph(0, 24 * named + 16, frame.caption, size=CAPTION)
    whole.put(frame.drawing, 0, room)
    return whole
