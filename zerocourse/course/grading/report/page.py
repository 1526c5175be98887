"""A page: its style, which follows the reader's light or dark, and what pages have in common."""

from collections.abc import Iterable
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --plate: #f6f8fa; --page: #ffffff;
        --passed: #1a7f37; --failed: #b42318; --open: #8c959f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --faint: #9198a1; --line: #3d444d; --plate: #151b23; --page: #0d1117;
          --passed: #3fb950; --failed: #ff7b72; --open: #6e7681; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
a { color: inherit; }
code, pre { font: .88rem/1.45 ui-monospace, monospace; background: var(--plate); border-radius: 4px; overflow-wrap: anywhere; }
code { padding: .1em .3em; }
td:first-child code { overflow-wrap: normal; }
pre { padding: .7rem .9rem; border: 1px solid var(--line); overflow-x: auto; overflow-wrap: normal; }
.faint { color: var(--faint); }
.bar { display: flex; height: .9rem; min-width: 6rem; border: 1px solid var(--line); border-radius: 3px; overflow: hidden; }
.bar span { display: block; border-right: 1px solid var(--page); }
.passed { color: var(--passed); } .failed { color: var(--failed); } .open { color: var(--faint); }
.bar .passed { background: var(--passed); }
.bar .failed { background: repeating-linear-gradient(45deg, var(--failed) 0 4px, transparent 4px 7px); }
.bar .open { background: transparent; }
.scroll { overflow-x: auto; }
"""


def page(title: str, *parts: str) -> str:
    body = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{escape(title)}</h1>
{body}
</body></html>
"""


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> str:
    """Cells are HTML already. numbers: the columns that stand on the right."""
    def cells(tag, row):
        return "".join(f"<{tag}{' class=number' * (at in numbers)}>{cell}</{tag}>" for at, cell in enumerate(row))
    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def bar(passed: int, failed: int, rest: int) -> str:
    """How many of a whole: solid what passed, hatched what failed, empty what is not done. Its words say the same."""
    whole = passed + failed + rest or 1
    parts = "".join(f'<span class="{name}" style="width:{100 * count / whole:.1f}%"></span>'
                    for name, count in (("passed", passed), ("failed", failed), ("open", rest)) if count)
    words = f"{passed} passed, {failed} failed, {rest} not done"
    return f'<div class="bar" role="img" aria-label="{words}" title="{words}">{parts}</div>'
