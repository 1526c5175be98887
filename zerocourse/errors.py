"""The errors of this package. Each is one sentence that says what is wrong, where, and what would be right."""


class ZeroCourseError(Exception):
    """The base class of this package's errors. The command line prints their sentence without a traceback."""


class BadInput(ZeroCourseError, ValueError):
    """The caller asked for something impossible. The command line ends with exit status 2."""


class OutOfMemory(ZeroCourseError, MemoryError):
    """A rank went over the budget of its ledger (`zerocourse.measure.ledger`)."""


class CollectiveError(ZeroCourseError, RuntimeError):
    """A collective did not complete: ranks called different ones, or a rank never called it or is gone."""


class LossScaleError(ZeroCourseError, ArithmeticError):
    """Gradients in fp16 overflow at the smallest loss scale that is allowed."""


class UntrueSentence(ZeroCourseError, AssertionError):
    """A sentence that a chapter prints is not so by the numbers of its cell: it says which, and what the numbers are."""


class PipelineError(ZeroCourseError, RuntimeError):
    """The model failed on a rank of a pipeline: the sentence says in which action, stage, micro-batch and layers."""
