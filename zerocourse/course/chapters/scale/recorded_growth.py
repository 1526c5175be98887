"""How the package's own cost grows, measured once and kept in `recorded_growth.json`, so that all read the same table.
`python -m zerocourse.bench.growth --record` measures again, on a machine that should be quiet.
"""

from ....measure.recorded import Recorded

recorded_growth = Recorded(__file__, "recorded_growth")
"""A cost a row: what, by, sizes, values, exponent, and fitted, the range of sizes that the exponent is of."""
