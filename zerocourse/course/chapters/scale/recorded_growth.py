"""How the package's own cost grows, measured once and kept in `recorded_growth.json`, so that all read the same table.
`python -m zerocourse.bench.growth --record` measures again, on a machine that should be quiet.
"""

import json
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")


def recorded_growth() -> list[dict]:
    """A cost a row: what, by, sizes, values, exponent, and fitted, the range of sizes that the exponent is of."""
    return json.loads(FILE.read_text())
