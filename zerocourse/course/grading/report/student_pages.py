"""One page for each student: every answer with its verdict, and what was said to it. Nobody else is on it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from ...checks.exercise import exercises
from ...checks.verdict import MARKS, NOT_DONE, Verdict, sentence_html
from ..classroom import Row
from .class_page import class_page
from .page import html_table, page


def save_report(rows: Sequence[Row], folder: Path) -> None:
    """index.html is the class's page, students.html lists the students, and students/ has a page of each."""
    (folder / "students").mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(class_page(rows), encoding="utf-8")
    listed = []
    for student in dict.fromkeys(row.student for row in rows):
        theirs = [row for row in rows if row.student == student]
        (folder / "students" / f"{student}.html").write_text(student_page(student, theirs), encoding="utf-8")
        problems = "; ".join(row.problem for row in theirs if row.problem)
        listed.append([f'<a href="students/{quote(student)}.html">{escape(student)}</a>', points_of(theirs), str(sum(row.passed for row in theirs)),
                       escape(problems)])
    listing = html_table(["", "points", "passed", "what could not be graded"], listed, [1, 2])
    (folder / "students.html").write_text(page("Students", '<p><a href="index.html">How the class did</a></p>', listing), encoding="utf-8")


def points_of(rows: Sequence[Row]) -> str:
    return f"{sum(row.points for row in rows)} of {sum(row.of_points for row in rows)}"


def student_page(student: str, rows: Sequence[Row]) -> str:
    """HTML, with a table for each of their notebooks."""
    parts = [f"<p>{points_of(rows)} points.</p>"]
    for row in rows:
        parts.append(f"<h2>{escape(Path(row.name).name)}</h2>")
        parts.append(f"<p class=failed>It could not be graded: {escape(row.problem)}</p>" if row.problem else
                     html_table(["", "exercise", "points", ""], [line(row, verdict) for verdict in row.verdicts.values()], [2]))
    return page(f"Feedback for {student}", *parts)


def line(row: Row, verdict: Verdict) -> list[str]:
    asked = exercises().get(verdict.id)
    name = "open" if verdict.status == NOT_DONE else verdict.status
    printed = f"<pre>{escape(verdict.printed.rstrip())}</pre>" if verdict.printed.strip() else ""
    return [f"{verdict.id}", escape(asked.title if asked else ""), f"{row.worth(verdict.id) if verdict.passed else 0} of {row.worth(verdict.id)}",
            f"<b class={name}>{MARKS[verdict.heading]} {verdict.heading}</b> {sentence_html(verdict.message)}{printed}"]
