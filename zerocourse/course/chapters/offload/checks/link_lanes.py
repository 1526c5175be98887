"""The checks of 14.2 and 14.5: the bytes of a link's two lanes, and when the last gradient is down."""

from ....checks import Trial, exercise

# 14.2 ---------------------------------------------------------------------------------------------------------------

CASES = [(1000, 1, 1, False, False), (1000, 2, 1, False, False), (1000, 2, 4, False, False), (1000, 2, 1, True, False),
         (1200, 4, 1, False, True), (1200, 4, 3, False, True), (1200, 4, 3, True, True)]


@exercise(
    "14.2", "Bytes down, bytes up", minutes=10, difficulty=1,
    trials=[Trial(list(CASES))],
    mistakes={
        "whole": {"share": lambda params, ranks: params},
        "each micro-batch": {"sent": lambda micro: micro},
        "fp32 up": {"up": lambda wide: 4 if wide else 2},
        "always fp32": {"down": lambda wide: 4},
        "never fp32": {"down": lambda wide: 2},
        "one gather": {"gathers": lambda micro: micro},
        "gathers a step": {"gathers": lambda micro: 2},
        "result too": {"gathers": lambda micro: 2 * micro + 1},
    })
def link_bytes(params, ranks, micro_batches, fp32_gradients, parameters, *, share=lambda params, ranks: params // ranks,
               sent=lambda micro: 1, up=lambda wide: 2, down=lambda wide: 4 if wide else 2, gathers=lambda micro: 2 * micro):
    """(down, up) of one rank in a step.

    whole: You counted the whole model: each rank moves its own share.
    each micro-batch: You sent a gradient down for each micro-batch: they are added up on the device first.
    fp32 up: You brought fp32 parameters up: the device computes in half precision, so 2 bytes each are enough.
    always fp32: You sent gradients down in fp32 always: they have 2 bytes, unless `fp32_gradients`.
    never fp32: You sent gradients down in half precision always: with `fp32_gradients` they have 4 bytes.
    one gather: With `parameters` you brought them up once for each micro-batch: forward and backward each gather them.
    gathers a step: With `parameters` you brought them up twice in a step: it is twice for each micro-batch.
    result too: With `parameters` you also brought the step's result up: the next gather does that.
    right: to the byte, as HostOffload's link counts them.
    """
    own = share(params, ranks)
    return (down(fp32_gradients) * sent(micro_batches) * own,
            (2 * gathers(micro_batches) if parameters else up(fp32_gradients)) * own)


# 14.5 ---------------------------------------------------------------------------------------------------------------

LANES = [([0.0], [8], 4.0), ([0.0, 1.0], [8, 4], 4.0), ([1.0, 1.5, 8.0], [8, 4, 2], 4.0), ([0.5, 3.0, 3.25], [2, 8, 4], 8.0),
         ([2.0, 2.0, 2.0], [4, 4, 4], 2.0)]


def queue(ready, sizes, rate, *, begins=lambda free, ready, all: max(free, ready), takes=lambda nbytes, rate: nbytes / rate,
          told=lambda begin, end: end):
    found, free = [], 0.0
    for moment, nbytes in zip(ready, sizes, strict=True):
        begin = begins(free, moment, ready)
        free = begin + takes(nbytes, rate)
        found.append(told(begin, free))
    return found


@exercise(
    "14.5", "When is everything down?", minutes=15, difficulty=2,
    trials=[Trial(LANES, close=1e-6)],
    mistakes={
        "no queue": {"begins": lambda free, ready, all: ready},
        "not ready": {"begins": lambda free, ready, all: free},
        "after backward": {"begins": lambda free, ready, all: max(free, all[-1])},
        "idle added": {"begins": lambda free, ready, all: free + ready},
        "the last": lambda ready, sizes, rate: queue(ready, sizes, rate)[-1:],
        "begins": {"told": lambda begin, end: begin},
        "whole seconds": {"takes": lambda nbytes, rate: nbytes // rate},
        "times the rate": {"takes": lambda nbytes, rate: nbytes * rate},
        "first at 0": {"begins": lambda free, ready, all: max(free, ready) if free else 0.0},
    })
def down_times(ready, sizes, rate, **how):
    """The end of each transfer on a lane that carries one after the other.

    no queue: You began each transfer when it was ready: the lane carries one at a time, so it may still be busy.
    not ready: You began each transfer when the one before had ended: it may not have been computed by then.
    after backward: You waited for the last gradient before the first went down: that is the step without overlap.
    idle added: You added the waiting times: a transfer begins at the *later* one of two moments.
    the last: You returned the last end alone: the end of each transfer is wanted, in a list.
    begins: You returned when each transfer begins: the ends are wanted.
    whole seconds: You divided with //: a transfer takes bytes / rate seconds, and these may be fractions.
    times the rate: You multiplied by the rate: bytes / rate are seconds.
    first at 0: You began the first transfer at 0: it may not be ready then.
    right: the last entry is when the host's last update can begin, and it says what bounds the step.
    """
    return queue(ready, sizes, rate, **how)
