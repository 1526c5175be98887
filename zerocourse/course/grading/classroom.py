"""Class mode: grades every notebook below a folder."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from ...errors import BadInput
from ...launch.processes.failures import LaunchError
from .. import chapters
from ..checks.exercise import exercises
from ..checks.lab import new_ranks
from ..checks.verdict import Verdict
from .examiner import grade
from .gradebook import Gradebook
from .notebook import Cell, ids_of, read_cells
from .student import Limits

HANDED_IN = re.compile(rf"(.+?)[_-]+({'|'.join(Path(chapters.notebook_name(number)).stem for number in chapters.with_exercises())})(-\d+)?")
"""A file's name that ends in the notebook's own, and in a number where it was handed in again."""
SPARE_SECONDS = 120  # that an examiner gets beyond a notebook's time, for references and for starting ranks


@dataclass(frozen=True)
class Row:
    """One notebook. name: its path below the folder.   problem: why it could not be graded, or nothing.   cells: of its answers.
    anew: how many answers were graded in this run; the others were the same in the last one."""

    name: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    problem: str = ""
    cells: tuple[Cell, ...] = ()
    anew: int = 0

    @property
    def student(self) -> str:
        """Whose it is: the first folder of its path, else what stands before the notebook's own name in the file's."""
        folder, _, rest = self.name.partition("/")
        stem = Path(self.name).stem
        return folder if rest else found[1] if (found := HANDED_IN.fullmatch(stem)) else stem

    @property
    def points(self) -> int:
        return sum(self.worth(id) for id, verdict in self.verdicts.items() if verdict.passed)

    @property
    def of_points(self) -> int:
        return sum(map(self.worth, self.verdicts))

    @staticmethod
    def worth(id: str) -> int:
        """The points of an exercise; 0 of one that there is not."""
        known = exercises()
        return known[id].points if id in known else 0

    def source(self, id: str) -> str:
        """What was handed in as the answer to an exercise."""
        return "\n".join(cell.source for cell in self.cells if cell.id == id)

    @property
    def passed(self) -> int:
        return sum(verdict.passed for verdict in self.verdicts.values())

    def as_dict(self) -> dict:
        """For JSON."""
        if self.problem:
            return {"problem": self.problem}
        return {id: {"status": each.status, "message": each.message, "code": each.code,
                     "points": self.worth(id) if each.passed else 0} for id, each in self.verdicts.items()}

    def __str__(self) -> str:
        return f"{self.name}: {self.problem or f'{self.passed} of {len(self.verdicts)} passed, {self.points} of {self.of_points} points'}"


def notebooks_in(folder: Path) -> list[Path]:
    """Every notebook below, those of editors' backups left out. Raises BadInput when there is none."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder")
    paths = sorted(path for path in folder.rglob("*.ipynb") if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    if not paths:
        raise BadInput(f"there is no notebook (.ipynb) below {folder}")
    return paths


def grade_folder(folder: Path, ids: list[str], limits: Limits, jobs: int, book: Gradebook,
                 on_done: Callable = lambda _: None, if_there: bool = False) -> list[Row]:
    """A row for each notebook, in order. There are `jobs` examiners, each a process that grades one after another.

    book: what was graded before; an answer that is in it is not graded again.
    if_there: of `ids` only those to which a notebook has an answer, where it else could not be graded.
    """
    paths, free = notebooks_in(folder), SimpleQueue()

    def one(path: Path) -> Row:
        name = path.relative_to(folder).as_posix()
        try:
            cells = read_cells(path)
        except BadInput as error:
            row = Row(name, problem=str(error))
        else:
            known, wanted = book.known(name, cells), [id for id in ids or ids_of(cells) if not if_there or id in ids_of(cells)]
            found = graded(path, missing) if (missing := [id for id in wanted if id not in known]) else {}
            if isinstance(found, str):
                row = Row(name, problem=found)
            else:
                row = Row(name, {id: (known | found)[id] for id in wanted}, cells=tuple(cells), anew=len(found))
                if found:
                    book.keep(name, cells, (known | found).values())
        on_done(row)
        return row

    def graded(path: Path, ids: list[str]) -> dict[str, Verdict] | str:
        examiner = free.get()
        try:
            result, = examiner.run(verdicts_or_problem, path, ids, limits, timeout=limits.seconds + SPARE_SECONDS)
        except (LaunchError, BadInput) as error:
            return f"its examiner did not come to an end: {error}"
        finally:
            free.put(examiner)
        return result if isinstance(result, str) else {each["id"]: Verdict(**each) for each in result}

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
