"""Class mode: grades every notebook below a folder, and writes one table for the teacher."""

import csv
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from ...errors import BadInput
from ...launch.processes.failures import LaunchError
from ..checks.lab import new_ranks
from ..checks.verdict import Verdict
from .examiner import grade
from .student import Limits

SPARE_SECONDS = 120  # that an examiner gets beyond a notebook's time, for references and for starting ranks


@dataclass(frozen=True)
class Row:
    """One notebook. name: its path below the folder.   problem: why it could not be graded, or nothing."""

    name: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    problem: str = ""

    @property
    def passed(self) -> int:
        return sum(verdict.passed for verdict in self.verdicts.values())

    def as_dict(self) -> dict:
        """For JSON."""
        if self.problem:
            return {"problem": self.problem}
        return {id: {"status": each.status, "message": each.message} for id, each in self.verdicts.items()}

    def __str__(self) -> str:
        return f"{self.name}: {self.problem or f'{self.passed} of {len(self.verdicts)} passed'}"


def notebooks_in(folder: Path) -> list[Path]:
    """Every notebook below, those of editors' backups left out. Raises BadInput when there is none."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder")
    paths = sorted(path for path in folder.rglob("*.ipynb") if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    if not paths:
        raise BadInput(f"there is no notebook (.ipynb) below {folder}")
    return paths


def grade_folder(folder: Path, ids: list[str], limits: Limits, jobs: int,
                 on_done: Callable = lambda _: None) -> list[Row]:
    """A row for each notebook, in order. There are `jobs` examiners, each a process that grades one after another."""
    paths, free = notebooks_in(folder), SimpleQueue()

    def one(path: Path) -> Row:
        examiner = free.get()
        try:
            result, = examiner.run(verdicts_or_problem, path, list(ids), limits, timeout=limits.seconds + SPARE_SECONDS)
        except (LaunchError, BadInput) as error:
            result = f"its examiner did not come to an end: {error}"
        name = str(path.relative_to(folder))
        row = Row(name, problem=result) if isinstance(result, str) else \
            Row(name, {each["id"]: Verdict(**each) for each in result})
        free.put(examiner)
        on_done(row)
        return row

    with ExitStack() as examiners, ThreadPoolExecutor(jobs) as threads:
        for _ in range(min(jobs, len(paths))):
            free.put(examiners.enter_context(new_ranks(1, init=False, fork=False)))
        return list(threads.map(one, paths))


def verdicts_or_problem(path: Path, ids: list[str], limits: Limits) -> list[dict] | str:
    """In an examiner's process: the verdicts on one notebook, or why there are none."""
    try:
        return list(map(vars, grade(path, ids, limits).values()))
    except BadInput as error:
        return str(error)


def save_csv(rows: Iterable[Row], path: Path) -> None:
    """A line a notebook: how many passed, the status of every exercise, and then what was said to each."""
    ids = sorted({id for row in rows for id in row.verdicts}, key=lambda id: tuple(map(int, id.split("."))))
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["notebook", "passed", "of", "problem", *ids, *(f"{id} message" for id in ids)])
        for row in rows:
            each = [row.verdicts.get(id) for id in ids]
            table.writerow([row.name, row.passed, len(row.verdicts), row.problem,
                            *(verdict.status if verdict else "" for verdict in each),
                            *(verdict.message if verdict else "" for verdict in each)])
