"""A picture in the forms that every host of notebooks shows, with words for who does not see it."""

from base64 import b64encode
from html import escape

SMALLEST = 0.85  # of its width a picture is shown at least, so that its words stay legible; a narrower page scrolls it


def image(png: bytes, alt: str, width: float | None = None) -> str:
    """An <img> with the whole picture inside. alt: what it shows, in words.   width: CSS pixels, where the page has room;
    None: half of the picture's own, which are for screens of double density.

    As an output of its own type, a picture has no alternative text in JupyterLab. An image in HTML has.
    """
    width = width or int.from_bytes(png[16:20]) / 2  # where a PNG's header has it
    return (f'<div style="overflow-x:auto"><img src="data:image/png;base64,{b64encode(png).decode()}" alt="{escape(alt)}"'
            f' width="{width:g}" style="max-width:100%; min-width:{SMALLEST * width:.0f}px; height:auto"></div>')


def picture(png: bytes, alt: str) -> dict[str, str]:
    """By type: an image with words in HTML; the image itself, for hosts that show no HTML; and the words alone."""
    return {"text/plain": alt, "text/html": image(png, alt), "image/png": b64encode(png).decode()}
