"""A picture in SVG, as HTML that every host shows: a still or moving image with words for who does not see it."""

from base64 import b64encode
from html import escape


def image(svg: str, alt: str, width: float) -> str:
    """An <img> with the whole picture inside. alt: what it shows, in words.   width: CSS pixels, where the page has room.

    As the output of its own type, an SVG has no alternative text in JupyterLab or nbconvert, nbconvert cuts it off on
    narrow pages, and JupyterLab hides it in notebooks that it does not trust. An image in HTML has none of these faults.
    """
    encoded = b64encode(svg.encode()).decode()
    return (f'<img src="data:image/svg+xml;base64,{encoded}" alt="{escape(alt)}" width="{width:g}"'
            ' style="max-width:100%; height:auto">')
