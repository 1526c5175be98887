"""The page of a class, which may be shown to it: which mistake how often, and for each exercise three anonymous examples."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from html import escape

from ...checks.exercise import Exercise, exercises
from ...checks.verdict import FAILED, NOT_DONE, Verdict, sentence_html
from ..classroom import Row
from ..grade_tables import ids_in
from .anonymous import anonymous
from .page import bar, html_table, page

EXAMPLES = 3
OF_ANY = {"difference": "It is wrong, and no mistake that we know explains it.", "type": "It is right, but not of the type that is asked for.",
          "raised": "It raised an exception, or its cell does not run.",
          "misused": "It uses what it is given in a way that is not allowed.", "stuck": "The ranks disagree on a collective, and wait for ever.",
          "hung": "It did not end in time.", "died": "Its process ended.", "delegated": "It calls the package's own function.",
          "usage": "There is no function of that name, or it is no function.", "broken": "The check itself failed: this is ours to mend."}
"""What the codes mean that every exercise has."""


def class_page(rows: Sequence[Row]) -> str:
    """HTML. Nobody is named on it."""
    read = [row for row in rows if not row.problem]
    students, total, possible = {row.student for row in rows}, sum(row.points for row in read), sum(row.of_points for row in read)
    unread = f" {len(rows) - len(read)} of them could not be graded." if len(read) < len(rows) else ""
    ids = ids_in(read)
    asked = exercises()
    overview = [[f'<a href="#e{id}">{id}</a>', escape(asked[id].title), bar(*counts(read, id)), str(counts(read, id)[0]),
                 most_common(read, id)] for id in ids]
    return page("How the class did", f"<p>{len(students)} students, {len(rows)} notebooks.{unread} {total} of {possible} points.</p>",
                "<p class=faint>In a bar, solid is what passed, hatched what failed, and empty what is not done.</p>",
                html_table(["", "exercise", "answers", "passed", "the most common mistake"], overview, [3]),
                *(section(read, asked[id]) for id in ids))


def verdicts_on(rows: Sequence[Row], id: str) -> list[tuple[Row, Verdict]]:
    return [(row, row.verdicts[id]) for row in rows if id in row.verdicts]


def counts(rows: Sequence[Row], id: str) -> tuple[int, int, int]:
    """Passed, failed, not done."""
    found = Counter(verdict.status for _, verdict in verdicts_on(rows, id))
    return found.total() - found[FAILED] - found[NOT_DONE], found[FAILED], found[NOT_DONE]


def mistakes(rows: Sequence[Row], id: str) -> Counter[str]:
    return Counter(verdict.code or "" for _, verdict in verdicts_on(rows, id) if verdict.status == FAILED)


def most_common(rows: Sequence[Row], id: str) -> str:
    found = mistakes(rows, id).most_common(1)
    return f"{escape(found[0][0])} <span class=faint>× {found[0][1]}</span>" if found else ""


def section(rows: Sequence[Row], asked: Exercise) -> str:
    """An exercise: its mistakes, most frequent first, and examples."""
    found = mistakes(rows, asked.id)
    passed, failed, rest = counts(rows, asked.id)
    head = f'<h2 id="e{asked.id}">{asked.id} {escape(asked.title)}</h2><p>{passed} passed, {failed} failed, {rest} not done.</p>'
    if not found:
        return head
    told = [[f"<code>{escape(code)}</code>", str(count), sentence_html(meaning(asked, code))] for code, count in found.most_common()]
    shown = "".join(f"<p><b>{escape(code)}</b>: {sentence_html(verdict.message)}</p><pre>{escape(anonymous(source))}</pre>"
                    for code, verdict, source in examples(rows, asked.id))
    return head + html_table(["mistake", "answers", "what it is"], told, [1]) + f"<h3>Answers with a mistake</h3>{shown}"


def examples(rows: Sequence[Row], id: str) -> list[tuple[str, Verdict, str]]:
    """At most three: of each of the most frequent mistakes one, then second ones. Whose they are their order does not tell."""
    failed = [(verdict.code or "", verdict, source) for row, verdict in verdicts_on(rows, id)
              if verdict.status == FAILED and (source := row.source(id)).strip()]
    rank = {code: place for place, (code, _) in enumerate(mistakes(rows, id).most_common())}
    by_code: dict[str, list] = {}
    for each in sorted(failed, key=lambda each: hashlib.sha256(each[2].encode()).digest()):
        if all(anonymous(each[2]) != anonymous(other[2]) for other in by_code.setdefault(each[0], [])):
            by_code[each[0]].append(each)
    turns = [(turn, rank[code], each) for code, those in by_code.items() for turn, each in enumerate(those)]
    return [each for *_, each in sorted(turns, key=lambda of: of[:2])[:EXAMPLES]]


def meaning(asked: Exercise, code: str) -> str:
    """The sentence of a mistake, without what is filled in for one answer."""
    sentence = asked.sentences.get(code) or OF_ANY.get(code, "")
    sentence = re.sub(r"\{[^}]*\}", "…", sentence).removeprefix(", ")
    return sentence[:1].upper() + sentence[1:]
