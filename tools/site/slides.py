"""Slides of each chapter, by nbconvert: a heading with its question, then the picture or table that answers it. What explains
them is in the speaker's notes (press S), and code is left out."""

from pathlib import Path

import nbformat
from jinja2 import DictLoader
from nbconvert import SlidesExporter

from ..notebooks import chapters
from .source import link_outputs

TEMPLATE = """{% extends 'index.html.j2' %}
{% block html_head_js %}<style>
.reveal pre, .reveal table { font-size: 0.55em; } .reveal .slides { text-align: left; } .reveal h1, .reveal h2 { text-transform: none; }
.reveal .slides section section { max-height: 100%; overflow-y: auto; }
</style>{% endblock %}
{% block html_head_js_mathjax %}<script src="../mathjax/tex-mml-chtml.js" defer></script>{% endblock %}
{% block footer_js %}<script src="../reveal.js/dist/reveal.js"></script><script src="../reveal.js/plugin/notes/notes.js"></script>
<script>Reveal.initialize({ hash: true, width: 1100, height: 760, transition: "none", plugins: [RevealNotes] });</script></html>{% endblock %}
"""
WRITTEN = "check("  # what a learner writes, and the verdict on it


def write_slides(folder: Path) -> None:
    """Write NN_topic.html for each chapter."""
    folder.mkdir()
    exporter = SlidesExporter(extra_loaders=[DictLoader({"slides.j2": TEMPLATE})], template_file="slides.j2", exclude_input=True,
                              exclude_output_prompt=True, reveal_url_prefix="../reveal.js", reveal_theme="white")
    for path in chapters():
        notebook = nbformat.read(path, as_version=4)
        link_outputs(notebook)
        for number, cell in enumerate(notebook.cells):
            cell.metadata["slideshow"] = {"slide_type": kind(cell, number)}
        text, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": path.stem}})
        (folder / f"{path.stem}.html").write_text(text)


def kind(cell, number: int) -> str:
    """nbconvert's own kinds of slides: one for a heading, one for what a cell shows, notes for the words that explain."""
    if cell.cell_type == "markdown":
        return "slide" if number == 0 or cell.source.startswith("## ") else "notes"
    ours = "ours" in cell.metadata.get("tags", ())  # a cell that shows our answer
    return "subslide" if WRITTEN not in cell.source and not ours and any(shown(output) for output in cell.get("outputs", ())) else "skip"


def shown(output) -> bool:
    """Is it a picture or a table?"""
    return bool({"image/png", "text/html"} & set(output.get("data", {})))
