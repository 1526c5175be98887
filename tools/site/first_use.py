"""Links a term of the glossary where a chapter uses it first, and a paper that a chapter cites stays as the chapter has it."""

import re

from docutils import nodes
from sphinx import addnodes

from ..notebooks import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
NOT_IN = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.math, addnodes.pending_xref, nodes.raw)


def terms() -> list[str]:
    """Of the glossary; those of several words first, so that "loss scale" is not found as "loss"."""
    inside = re.search(r"```\{glossary\}\n(.*?)```", GLOSSARY.read_text(), re.S)[1]
    return sorted(re.findall(r"^(\S.*)$", inside, re.M), key=len, reverse=True)


def link_first_uses(app, doctree):
    if not app.env.docname.startswith("notebooks/"):
        return
    wanted = {term: re.compile(rf"(?<![\w-]){re.escape(term)}s?(?![\w-])", re.I) for term in terms()}
    for text in list(doctree.findall(nodes.Text)):
        if text.parent is None or any(isinstance(parent, NOT_IN) for parent in parents(text)):
            continue
        found = {term: match for term, pattern in wanted.items() if (match := pattern.search(text))}
        taken, pieces, begin = [], [], 0
        for term, match in sorted(found.items(), key=lambda each: (each[1].start(), -len(each[0]))):
            if match.start() >= begin:
                pieces += [nodes.Text(text[begin:match.start()]), reference(app.env.docname, term, match.group())]
                begin = match.end()
                taken.append(term)
        if taken:
            text.parent.replace(text, [*pieces, nodes.Text(text[begin:])])
            wanted = {term: pattern for term, pattern in wanted.items() if term not in taken}


def parents(node):
    while node.parent is not None:
        node = node.parent
        yield node


def reference(docname: str, term: str, said: str) -> addnodes.pending_xref:
    return addnodes.pending_xref("", nodes.inline("", said, classes=["xref", "std", "std-term"]), refdomain="std", reftype="term",
                                 reftarget=term, refexplicit=True, refwarn=True, refdoc=docname)


def setup(app):
    app.connect("doctree-read", link_first_uses)
    return {"parallel_read_safe": True}
