"""One optimizer step under the ledger: what a rank holds before and after it, and what it sends. It communicates nothing."""

from collections.abc import Callable
from functools import wraps

from ..comm.group import Comm
from .ledger import Ledger


def watched_step(ledger: Ledger, optimizer, comm: Comm | None, run: Callable[[], float]) -> dict:
    """Run one step under the ledger. Returns the bytes held (gradients just before the update, the rest after it) and
    what `comm` counted as sent (None for each count without a `comm`). On a GPU, device_peak_bytes is its allocator's own peak."""
    def sent() -> tuple[int, ...]:
        return (comm.sent.total(), comm.elements.total(), comm.padding, comm.metadata) if comm else ()

    at_update, before, own = [], sent(), optimizer.step

    @wraps(own)  # a hook of the optimizer would be seen: the stages then step all buffers at once, which holds more
    def step(*args, **kwargs):
        at_update.append(ledger.now())
        return own(*args, **kwargs)

    was_set = "step" in vars(optimizer)
    optimizer.step = step
    loss = run()
    if was_set:
        optimizer.step = own
    else:
        del optimizer.step
    after = ledger.now().as_dict()
    counts = [now - then for now, then in zip(sent(), before, strict=True)] or [None] * 4
    return {"loss": loss, "gradients_bytes": at_update[0].gradients,
            **{kind: after[kind] for kind in ("parameters_bytes", "optimizer_bytes", "buffers_bytes", "rest_bytes")},
            "peak_bytes": ledger.peak, **({} if ledger.device_peak is None else {"device_peak_bytes": ledger.device_peak}),
            **dict(zip(("sent_bytes", "sent_elements", "padding_bytes", "metadata_bytes"), counts, strict=True))}
