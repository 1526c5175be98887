"""What the check of 7.7 puts around an answer that calls torch's own collectives: eyes on its memory and its calls."""

import re
import time
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from .....comm.torch_private import default_store, set_group_timeout
from .....errors import CollectiveError
from ....checks import Wrong
from ....checks.words import line_text

SECONDS = 2  # until a collective that the others do not call ends


def settled(ledger, most=0):
    """Bytes alive. A collective's thread may hold its tensors for a moment after the collective is done: look again,
    unless there are no more than `most`."""
    for pause in (0, 0.005, 0.02):
        time.sleep(pause)
        if (alive := ledger.now().total) <= most:
            break
    return alive


def guard_reads(model):
    """Raise Wrong where a block would read freed memory, which ends a process without a word. Comes after the hooks of
    the answer."""
    def look(number, what):
        if any(param.untyped_storage().nbytes() < param.nbytes for param in model[number].parameters()):
            raise Wrong(f"the {what} of block {number} begins, and its parameters have no memory", "no memory")

    for number, block in enumerate(model):
        def before(block, inputs, number=number):
            look(number, "forward")

        def after(block, inputs, output, number=number):
            if output.requires_grad:  # on the node, whose hooks come after those of the tensor, in order
                output.grad_fn.register_prehook(lambda _: look(number, "backward"))

        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)


def where_all_are(error):
    """The rank and the line of every collective whose time is up, from all ranks: it is up at about the same moment."""
    store, ranks = default_store(), range(dist.get_world_size())
    store.set(f"stuck {dist.get_rank()}", f"{error}{line_text(error)}")
    time.sleep(0.5)
    places = {rank: store.get(f"stuck {rank}").decode() for rank in ranks if store.check([f"stuck {rank}"])}
    return "; ".join(f"rank {rank} was in {places.get(rank, 'no collective')}" for rank in ranks)


@contextmanager
def watched_collectives():
    """Inside, how often torch's own collectives are called, by verb: a gather within a gather is one.

    One to which the other ranks do not come ends soon, with a CollectiveError.
    """
    calls, inside, kept = Counter(), [], {}

    def counts(verb, fn):
        def call(*args, **kwargs):
            calls[verb] += not inside
            inside.append(verb)
            try:
                return fn(*args, **kwargs)
            except RuntimeError as error:
                if isinstance(error, CollectiveError) or not re.search("imed out|onnection closed", str(error)):
                    raise
                raise CollectiveError(fn.__name__) from None
            finally:
                inside.pop()
        return call

    for name in dir(dist):
        verb = next((verb for verb in ("all_gather", "reduce_scatter", "all_reduce") if name.startswith(verb)), None)
        if verb and callable(getattr(dist, name)):
            kept[name] = getattr(dist, name)
            setattr(dist, name, counts(verb, kept[name]))
    set_group_timeout(timedelta(seconds=SECONDS))
    try:
        yield calls
    except CollectiveError as error:
        raise CollectiveError(f"a collective did not complete within {SECONDS} s: {where_all_are(error)}") from None
    finally:
        set_group_timeout(dist.default_pg_timeout)
        for name, fn in kept.items():
            setattr(dist, name, fn)
