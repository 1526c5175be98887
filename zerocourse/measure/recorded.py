"""Measurements that were made once and kept, so that everybody reads the same numbers.

    cost = Recorded(__file__, "cost", measure)
    cost()           # what was kept, in `cost.json` beside the file
    cost.renew()     # measures again, and keeps that
"""

import json
from collections.abc import Callable
from pathlib import Path

from ..errors import BadInput

WIDE = 200  # letters: what is longer is broken into its entries


class Recorded:
    """measure() returns what JSON can hold; None: somebody else does, and calls `keep`."""

    def __init__(self, beside: str, name: str, measure: Callable[[], object] | None = None):
        self.file, self.measure = Path(beside).with_name(f"{name}.json"), measure

    def __call__(self):
        return json.loads(self.file.read_text())

    def keep(self, data) -> None:
        self.file.write_text(laid_out(data) + "\n")

    def renew(self) -> None:
        """Raises BadInput where somebody else measures."""
        if self.measure is None:
            raise BadInput(f"{self.file.name} has no measure() of its own: run what measures, which keeps it")
        self.keep(self.measure())


def laid_out(data) -> str:
    """As JSON, an entry a line where it would be long, so that versions can be compared."""
    line = json.dumps(data)
    if len(line) <= WIDE or not isinstance(data, dict | list):
        return line
    entries = [laid_out(each) for each in data] if isinstance(data, list) else \
        [f"{json.dumps(str(key))}: {laid_out(each)}" for key, each in data.items()]
    return line[0] + "\n" + ",\n".join(entries) + "\n" + line[-1]
