"""The first call of a group over NCCL, in which all its ranks make the communicator together.

torch makes it in whatever is called first. Where that is a message between two ranks, the others never come and it hangs
(`torch.distributed.batch_isend_irecv`: "all ranks of the group must participate" in the first call). So the ranks add up one
number when they make their Comm, and see at once, and here only, whether their GPUs reach each other at all.
"""

import sys
import threading
import weakref

import torch
import torch.distributed as dist

from ...errors import CollectiveError
from .. import bootstrap

NOTICE_SECONDS = 20.0  # a first call takes a few
LIMIT = 0.9  # of the Comm's timeout, because at the end of it NCCL's watchdog ends the process without our sentence
WHY = ("every rank of the group must make its Comm at the same time; where all have, their GPUs cannot copy to each other directly, as in "
       "some old images, and NCCL_P2P_DISABLE=1 in the environment of the ranks helps")
made: "weakref.WeakSet[dist.ProcessGroup]" = weakref.WeakSet()  # the groups whose ranks have had their first call


def make_communicator(comm) -> None:
    """The first call of a Comm's group, if it has had none. Returns when it has ended. Counted as metadata.

    Raises CollectiveError after LIMIT of the Comm's timeout. NCCL may stop the host in it, so it runs in a thread.
    """
    group = comm.group or dist.group.WORLD
    if group in made:
        return
    made.add(group)
    device, over, errors = bootstrap.device(), threading.Event(), []

    def call() -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # of this thread
            comm.all_reduce(torch.ones(1, device=device)).item()
        except Exception as error:
            errors.append(error)
        over.set()

    threading.Thread(target=call, daemon=True, name="zerocourse-first-call").start()
    limit = LIMIT * comm.timeout.total_seconds()
    said = f"the first call over NCCL of the ranks {comm.progress.ranks} has not ended after"
    if not over.wait(min(NOTICE_SECONDS, limit)) and limit > NOTICE_SECONDS:
        sys.stderr.write(f"zerocourse: {said} {NOTICE_SECONDS:g} s: {WHY}\n")
        over.wait(limit - NOTICE_SECONDS)
    if errors:
        raise errors[0]
    if not over.is_set():
        raise CollectiveError(f"{said} {limit:.3g} s: {WHY}")
