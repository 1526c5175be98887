"""A picture as HTML that every host shows: a still or moving image, with words for who does not see it."""

from base64 import b64encode
from html import escape


def image(picture: str | bytes, alt: str, width: float | None = None) -> str:
    """An <img> with the whole picture inside: an SVG (str), or a PNG (bytes).

    alt: what it shows, in words.   width: CSS pixels, where the page has room; None: the picture's own.

    As an output of its own type, a picture has no alternative text in JupyterLab or nbconvert, nbconvert cuts off an SVG
    on narrow pages, and JupyterLab hides it in notebooks that it does not trust. An image in HTML has none of these faults.
    """
    kind, data = ("png", picture) if isinstance(picture, bytes) else ("svg+xml", picture.encode())
    margin = "" if kind == "png" else "; box-sizing:border-box; padding:8px; background-color:white"  # which a dark page needs
    size = "" if width is None else f' width="{width:g}"'
    return (f'<img src="data:image/{kind};base64,{b64encode(data).decode()}" alt="{escape(alt)}"{size}'
            f' style="max-width:100%; height:auto{margin}">')
