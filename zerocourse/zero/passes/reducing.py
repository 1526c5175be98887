"""The reductions of a stage's buckets: what is under way, and how they end. `Backward` starts most of them, by its list."""

from .agreement import agree
from ..buffers.buffer import FlatBuffer


class Reductions:
    """Of one stage.

    under_way: buckets whose reduction has begun, the oldest first.
    needs_finish: are there gradients that only this rank knows, or whose reduction is under way?
    has_unused: has there been a backward since the last step?   known_lists: those on which the ranks have agreed.
    """

    def __init__(self, stage):
        self.stage = stage
        self.under_way: list[FlatBuffer] = []
        self.needs_finish = self.has_unused = False
        self.known_lists: set[int] = set()

    def start(self, flat: FlatBuffer) -> None:
        """Start a bucket's reduction."""
        stage = self.stage
        flat.collect_deferred()
        flat.complete_bucket()
        flat.replicas.postponed = not stage.sums_replicas
        flat.reduction = stage.ops.reduce(flat, flat.comm)
        if flat.reduction is not None:
            self.under_way.append(flat)
        stage.meter.recount(flat)

    def next_part(self, flat: FlatBuffer) -> None:
        """Wait for the part of its reduction that is under way, and start the next one."""
        if flat.reduction is not None and hasattr(flat.reduction, "advance"):  # a user's own handle may have one part only
            flat.reduction.advance()
            self.stage.meter.recount(flat)

    def wait_for(self, flat: FlatBuffer) -> None:
        """Wait for a bucket's reduction, if one is under way."""
        if flat.reduction is None:
            return
        self.under_way.remove(flat)
        try:
            flat.reduction.wait()
        finally:
            flat.reduction = None
            self.stage.meter.recount(flat)

    def wait(self, keep: int = 0) -> None:
        """Wait, the oldest first, until at most `keep` are under way."""
        while len(self.under_way) > keep:
            self.wait_for(self.under_way[0])

    def finish(self, sums_replicas: bool = True) -> None:
        """Reduce what is left (of earlier backwards, or deferred), and hand the gradients to the optimizer."""
        stage = self.stage
        self.wait()
        for flat in stage.flats:
            flat.collect_deferred()
        for flat in agree(stage):
            self.wait(keep=max(0, stage.options.in_flight - 1))
            self.start(flat)
        self.wait()
        for flat in stage.flats if sums_replicas else ():
            flat.replicas.postponed = False
        for handle in [flat.add_replicas() for flat in stage.flats]:
            if handle is not None:
                handle.wait()
        for flat in stage.flats:
            if not flat.steps_masters:
                flat.publish_gradients()
            stage.meter.recount(flat)
        self.needs_finish = any(flat.replicas.waiting is not None for flat in stage.flats)
