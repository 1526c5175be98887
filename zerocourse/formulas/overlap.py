"""What overlap can bring at most. Formulas: no torch."""


def speedup_bound(compute: float, communication: float, exposed: float = 0.0) -> float:
    """A step's time without overlap over its time with perfect overlap.

    compute, communication: seconds of a step, not both 0.   exposed: seconds of the communication that nothing can hide.
    Without overlap they add up; with it, what can hide takes place while the rank computes.
    """
    return (compute + communication) / (exposed + max(compute, communication - exposed))
