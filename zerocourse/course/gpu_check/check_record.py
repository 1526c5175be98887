"""What a check sees, written to a file at each line, so that a check that hangs or dies tells how far it came."""

import json
import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

EXACT, HALF = 1e-4, 3e-2  # how far losses in fp32, and in half precision, may be from those of plain PyTorch in fp32


class Record:
    """The numbers of one check, and a sentence for each thing that is wrong.

    path: the JSON file, an object with "status", "seconds", "numbers" and "wrong". The status is "running" until `end`.
    tiny: whether the check is to take its small sizes.   folder: where a check may leave files of its own.
    """

    def __init__(self, path: Path, tiny: bool = False):
        self.path, self.folder, self.tiny = path, path.parent, tiny
        self.numbers, self.wrong, self.status, self.seconds = {}, [], "running", None
        self.write()

    def note(self, **numbers) -> None:
        self.numbers |= {name: plain(value) for name, value in numbers.items()}
        self.write()

    def expect(self, holds: bool, sentence: str) -> None:
        """Go on also where it does not hold: the next lines may tell why."""
        if not holds:
            self.wrong.append(sentence)
            self.write()

    def within(self, limit: float, distances: Mapping[str, float]) -> None:
        """Note the distances by name; each must be at most `limit`, which NaN is not."""
        self.note(**distances)
        for name, distance in distances.items():
            self.expect(distance <= limit, f"{name} is {distance:.2g} away, and {limit:.0e} is the most")

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """What is raised inside is a thing that is wrong, and the check goes on after it."""
        try:
            yield
        except Exception as error:
            self.expect(False, f"{what}: {type(error).__name__}: {error}")

    def fail(self, error: BaseException) -> None:
        self.wrong.append("".join(traceback.format_exception(error))[-3000:])

    def end(self, seconds: float) -> None:
        self.status, self.seconds = "failed" if self.wrong else "ok", round(seconds, 1)
        self.write()

    def write(self) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps({name: getattr(self, name) for name in ("status", "seconds", "numbers", "wrong")}))
        draft.replace(self.path)  # whole, also if the process ends now


def plain(value):
    """As JSON has it: a float with four digits that count, or as a word where it is infinite or NaN."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int)) else str(value)
