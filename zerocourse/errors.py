"""The errors that are ours: each is one sentence that says what, where, and what would be right."""


class ZeroCourseError(Exception):
    """The root of this package's errors; the command line prints its sentence without a traceback."""


class BadInput(ZeroCourseError, ValueError):
    """The caller asked for something that cannot be; the command line ends with exit status 2."""


class OutOfMemory(ZeroCourseError, MemoryError):
    """A rank went over the budget of its ledger (`zerocourse.measure.ledger`)."""


class CollectiveError(ZeroCourseError, RuntimeError):
    """A collective did not complete: ranks called different ones, one never came, or one is gone."""
