"""A small canvas for pictures of mechanisms, written as SVG: boxes, hatching, words, arrows, and frames that move.

The result is one string that is the same each time, because nbval compares SVG. It has no ids (two pictures on one
page cannot disturb each other), no scripts and no style sheets (hosts strip them): hatchings and arrowheads are lines,
and frames follow each other by SMIL, which browsers also play inside of <img>. Without it, the first frame is seen.

Lengths are in units of the viewBox. A picture is at most `WIDTH` wide, so that on a phone, which shows it at 0.6 times
its size, words of 15 units still are read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape

from ....errors import BadInput
from ..palette import FAINT, INK, MEANINGS

WIDTH = 640
SIZE = 15  # of words
FONT = "Helvetica, Arial, sans-serif"
Data = Mapping[str, object]


class Drawing:
    """A picture, or one frame of it, of a width and a height. Its methods add to it, the later above the earlier.

    data: what is drawn, as attributes `data-name="value"` that tests read and eyes do not see.
    """

    def __init__(self, width: float = WIDTH, height: float = 200):
        self.width, self.height = width, height
        self.parts: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str | None = None, label: str = "", *,
             fill: str = "none", stroke: str = INK, dashed: bool = False, size: float = SIZE, data: Data | None = None) -> None:
        """A box, in the colour and hatching of one of `palette.MEANINGS`, or in `fill`. label: words in its middle."""
        if kind is not None and kind not in MEANINGS:
            raise BadInput(f"kind {kind!r} is unknown: a box means one of {', '.join(MEANINGS)}")
        color = MEANINGS[kind].color if kind else fill
        self.tag("rect", x=x, y=y, width=width, height=height, fill=color, data=data)
        if kind:
            self._hatch(MEANINGS[kind].hatch, x, y, width, height)
        if stroke != "none":  # above the hatching
            self.tag("rect", x=x, y=y, width=width, height=height, fill="none", stroke=stroke,
                     stroke_dasharray="5 4" if dashed else None)
        if label:
            self.text(x + width / 2, y + height / 2 + 0.35 * size, label, size=size, anchor="middle", plate=bool(kind))

    def text(self, x: float, y: float, words: str, *, size: float = SIZE, anchor: str = "start", bold: bool = False,
             color: str = INK, plate: bool = False) -> None:
        """One line of words. x, y: where its base line starts, has its middle, or ends (anchor: start, middle, end).

        plate: a white ground behind the words, so that they are read on colours and hatchings.
        """
        if plate:
            wide = words_width(words, size, bold) + 0.5 * size
            left = x - wide * {"start": 0, "middle": 0.5, "end": 1}[anchor]
            self.tag("rect", x=left, y=y - 0.95 * size, width=wide, height=1.25 * size, rx=3, fill="white", fill_opacity=0.88)
            x += {"start": 0.25, "middle": 0, "end": -0.25}[anchor] * size
        self.tag("text", x=x, y=y, font_size=size, text_anchor=None if anchor == "start" else anchor,
                 font_weight="bold" if bold else None, fill=color, inside=escape(words))

    def paragraph(self, x: float, y: float, words: str, *, size: float = SIZE, width: float | None = None,
                  color: str = INK, bold: bool = False) -> float:
        """Words, broken into lines that fit into `width` (None: up to the right edge). Returns y of the next line."""
        for line in broken(words, (width or self.width - x) / size, bold):
            self.text(x, y, line, size=size, color=color, bold=bold)
            y += 1.3 * size
        return y

    def line(self, x1: float, y1: float, x2: float, y2: float, *, color: str = INK, width: float = 1, dashed: bool = False,
             data: Data | None = None) -> None:
        self.tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=color, stroke_width=width,
                 stroke_dasharray="5 4" if dashed else None, data=data)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, color: str = INK, width: float = 2,
              data: Data | None = None) -> None:
        """A straight arrow whose tip is at (x2, y2)."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1
        along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
        head = min(4 * width + 2, length)
        base = x2 - head * along[0], y2 - head * along[1]
        self.tag("line", x1=x1, y1=y1, x2=base[0], y2=base[1], stroke=color, stroke_width=width, data=data)
        corners = [(x2, y2), *((base[0] + side * head * across[0] / 2, base[1] + side * head * across[1] / 2) for side in (1, -1))]
        self.tag("polygon", points=" ".join(f"{number(a)},{number(b)}" for a, b in corners), fill=color)

    def legend(self, x: float, y: float, kinds: Sequence[str], names: Mapping[str, str] | None = None) -> float:
        """A key to the kinds, in rows from (x, y) down, as wide as the picture allows. Returns y below the last row."""
        at, top, names = x, y, names or {}
        for kind in kinds:
            words = names.get(kind, kind)
            wide = 22 + 6 + words_width(words, 14) + 18
            if at > x and at + wide - 18 > self.width:
                at, top = x, top + 24
            self.rect(at, top, 22, 16, kind)
            self.text(at + 28, top + 13, words, size=14)
            at += wide
        return top + 24

    def put(self, other: "Drawing", x: float, y: float) -> None:
        """Another drawing, with its upper left corner at (x, y)."""
        self.parts += [f'<g transform="translate({number(x)} {number(y)})">', *other.parts, "</g>"]

    @contextmanager
    def group(self, data: Data | None = None, opacity: float = 1) -> Iterator[None]:
        """What is drawn inside belongs together. opacity: below 1 it stands back."""
        self.parts.append("<g" + attributes(data=data, opacity=None if opacity == 1 else opacity) + ">")
        yield
        self.parts.append("</g>")

    def tag(self, name: str, inside: str = "", **values) -> None:
        """Any element of SVG; `_` in a name becomes `-`, None is left out. inside: what stands in it, as XML."""
        self.parts.append(f"<{name}{attributes(**values)}" + (f">{inside}</{name}>" if inside else "/>"))

    def _hatch(self, hatch: str, x: float, y: float, width: float, height: float) -> None:
        white = {"stroke": "white", "stroke_opacity": 0.75}
        if hatch in ("diagonal", "crossed"):
            path = "".join(diagonals(x, y, width, height, rising=True))
            if hatch == "crossed":
                path += "".join(diagonals(x, y, width, height, rising=False))
                white = {"stroke": FAINT, "stroke_opacity": 0.6}
            if path:
                self.tag("path", d=path, fill="none", stroke_width=1.2, **white)
        elif hatch == "dots":  # rows of short dashes
            for row in range(int((height + 3) // 6)):
                at = y + 3 + 6 * row
                self.tag("line", x1=x + 2, y1=at, x2=x + width, y2=at, stroke_width=min(2, height), stroke_dasharray="2 4", **white)
        elif hatch == "vertical" and width > 0 and height > 0:  # one wide, dashed line draws all
            middle = y + height / 2
            self.tag("line", x1=x + 3, y1=middle, x2=max(x + 3, x + width), y2=middle, stroke=INK, stroke_opacity=0.45,
                     stroke_width=height, stroke_dasharray="1.2 5")
        elif hatch == "horizontal" and width > 0 and height > 0:
            middle = x + width / 2
            self.tag("line", x1=middle, y1=y + 2, x2=middle, y2=max(y + 2, y + height), stroke_width=width,
                     stroke_dasharray="1.4 3.6", **white)


def still(drawing: Drawing, title: str, desc: str) -> str:
    """A picture that does not move. title: its caption.   desc: what is seen, in words and numbers."""
    return document(drawing, title, desc)


def animated(frames: Sequence[Drawing], seconds_each: float, title: str, desc: str, under: Drawing | None = None) -> str:
    """Frames that follow each other, each for `seconds_each`, and begin again. Without animation the first is seen.

    under: what is seen below all of them.
    """
    if not frames:
        raise BadInput("frames is empty: an animation needs at least one")
    whole = Drawing(max(frame.width for frame in frames), max(frame.height for frame in frames))
    whole.parts += under.parts if under else []
    for index, frame in enumerate(frames):
        begin, end = index / len(frames), (index + 1) / len(frames)
        times = {0.0: 0, begin: 1, end: 0}  # from then on: seen (1) or not (0)
        times.pop(1.0, None)
        motion = attributes(attributeName="opacity", calcMode="discrete", dur=f"{number(seconds_each * len(frames))}s",
                            repeatCount="indefinite", values=";".join(map(str, times.values())),
                            keyTimes=";".join(f"{time:.4f}" for time in times))
        whole.parts += [f'<g opacity="{int(index == 0)}">', *([f"<animate{motion}/>"] if len(frames) > 1 else []),
                        *frame.parts, "</g>"]
    return document(whole, title, desc)


def strip(frames: Sequence[Drawing], title: str, desc: str, columns: int | None = None, gap: float = 24) -> str:
    """The same frames, all seen at once: side by side, or in rows of `columns`."""
    if not frames:
        raise BadInput("frames is empty: a strip needs at least one")
    columns = min(columns or len(frames), len(frames))
    wide = max(frame.width for frame in frames)
    rows = [frames[at : at + columns] for at in range(0, len(frames), columns)]
    heights = [max(frame.height for frame in row) for row in rows]
    whole = Drawing(columns * wide + (columns - 1) * gap, sum(heights) + (len(rows) - 1) * gap)
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        for column, frame in enumerate(row):
            whole.put(frame, column * (wide + gap), top)
        top += height + gap
    return document(whole, title, desc)


def document(drawing: Drawing, title: str, desc: str) -> str:
    """The whole SVG. Its words are read aloud where it stands in a page; it is never wider than its page."""
    if len(desc.split()) < 4:
        raise BadInput(f"desc is {desc!r}: say in a sentence what the picture shows")
    width, height = number(drawing.width), number(drawing.height)
    head = attributes(xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=width, height=height,
                      role="img", aria_label=desc, style="max-width:100%;height:auto;background:white", font_family=FONT)
    return "\n".join([f"<svg{head}>", f"<title>{escape(title)}</title>", f"<desc>{escape(desc)}</desc>",
                      f'<rect width="{width}" height="{height}" fill="white"/>', *drawing.parts, "</svg>"])


def attributes(data: Data | None = None, **values) -> str:
    """As XML has them: stroke_width=2 becomes ` stroke-width="2"`, and data={"rank": 0} becomes ` data-rank="0"`."""
    named = {name.replace("_", "-"): value for name, value in values.items() if value is not None}
    named |= {f"data-{name.replace('_', '-')}": value for name, value in (data or {}).items()}
    return "".join(f' {name}="{escape(str(value) if isinstance(value, str) else number(value))}"' for name, value in named.items())


def number(value: float) -> str:
    """Integers in full; other numbers to two places, without zeros at the end."""
    return str(value) if isinstance(value, int) else f"{value:.2f}".rstrip("0").rstrip(".").replace("-0", "0", value > -0.005)


def words_width(words: str, size: float = SIZE, bold: bool = False) -> float:
    """About how wide the words are, in units: fonts differ, and this is on the wide side of the usual ones."""
    narrow = sum(letter in " .,:;il|'!()[]tfrj" for letter in words)
    return size * (0.58 * (len(words) - narrow) + 0.31 * narrow) * (1.08 if bold else 1)


def broken(words: str, ems: float, bold: bool = False) -> Iterator[str]:
    """Lines of at most so many times the size of the letters; a longer word stands alone."""
    line = ""
    for word in words.split():
        longer = f"{line} {word}".strip()
        if line and words_width(longer, 1, bold) > ems:
            yield line
            longer = word
        line = longer
    yield line


def diagonals(x: float, y: float, width: float, height: float, rising: bool, step: float = 8) -> Iterator[str]:
    """Lines at 45 degrees inside of a box, as pieces of a path."""
    at = step / 2
    while at < width + height:  # where the line would meet the lower edge, or the upper one if it falls
        x1, y1 = min(at, width), max(0.0, at - width)
        x2, y2 = max(0.0, at - height), min(at, height)
        top, bottom = (y + height - y1, y + height - y2) if not rising else (y + y1, y + y2)
        yield f"M{number(x + x1)} {number(top)}L{number(x + x2)} {number(bottom)}"
        at += step
