"""The ranks of one attempt of an elastic run agree on a name for it, so that they read nothing that earlier ones wrote."""

import time
import uuid
from collections.abc import Callable
from functools import partial

import torch.distributed as dist

from ..errors import CollectiveError

MEET_SECONDS = 300.0  # seconds in which all ranks must have come: importing torch may take a minute


def agree_on_attempt(store: dist.Store, rank: int, world_size: int, seconds: float = MEET_SECONDS) -> str:
    """A name for this attempt, the same on all its ranks, from a store that earlier attempts have used too. Collective.

    The number of restarts would not do: each node counts those after its own failures, and none counts nodes that come
    and go. So each rank asks under a name that nobody has used, rank 0 answers with a name of its own, and is done when
    every rank has read it. No rank of an earlier attempt asks or answers any more, because torchrun's agents end their
    ranks before they meet. Raises CollectiveError when a rank does not come within `seconds`.
    """
    mine, until = uuid.uuid4().hex, time.monotonic() + seconds

    def wait_for(key: str, missing: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        while not store.check([key]):
            meanwhile()
            if time.monotonic() > until:
                raise CollectiveError(f"rank {rank} has waited {seconds:g} s at the start for rank {missing} of "
                                      f"{world_size}; if nodes have come or gone, set "
                                      "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun on every node, so that all "
                                      "of them look for the new store")
            time.sleep(0.01)

    if rank:
        store.set(f"question of {rank}", mine)
        wait_for(f"answer to {mine}", 0)
        name = store.get(f"answer to {mine}").decode()
        store.set(f"{name} read by {rank}", "")
        return name

    def answer(peer: int) -> None:
        if store.check([f"question of {peer}"]):  # it may be an earlier attempt's, so we look again until it is read
            store.set(f"answer to {store.get(f'question of {peer}').decode()}", mine)

    for peer in range(1, world_size):
        wait_for(f"{mine} read by {peer}", peer, partial(answer, peer))
    return mine
