"""One step of stage 3 on two ranks over a limited link, recorded once and kept in `recorded_step.json`, so that
everybody reads the same timeline. `python -m zerocourse.course.chapters.overlap.recorded_step` records another one in its place.
"""

import torch
import torch.distributed as dist

from ....comm import Comm
from ....launch.link import limited_link
from ....measure.recorded import Recorded
from ....models.gpt2 import GPTConfig, build_model
from ...trials.overlap_trial import OverlapRun

CONFIG = GPTConfig(5, 2, 64, block_size=64, vocab_size=256)
SETTINGS = {"prefetch": 2, "in_flight": 2}  # the options of `shard`
SEQUENCES = 16, 10  # of a step, on rank 0 and on rank 1: one rank has more to compute, so the other waits for it
RATE_MBIT, WARM_UP = 30, 4  # of the link; steps before the one that is kept


def record() -> list[dict]:
    """Record such a step. Raises BadInput where there can be no limited link."""
    with limited_link(RATE_MBIT) as link:
        nodes = link.launch(last_step, quiet=True, device="cpu")
    events = [event for node in nodes for of_rank in node for event in of_rank]
    begun = min(event["start"] for event in events)
    for event in events:
        event["start"], event["end"] = (round(event[edge] - begun, 4) for edge in ("start", "end"))
    return sorted(events, key=lambda event: (event["rank"], event["end"]))


def last_step() -> list[dict]:
    """On a rank: make some steps, and return the events of the last. Collective."""
    comm = Comm()
    torch.manual_seed(comm.rank)
    tokens_BT = torch.randint(CONFIG.vocab_size, (SEQUENCES[comm.rank], CONFIG.block_size))
    run = OverlapRun(build_model(CONFIG), tokens_BT, comm, **SETTINGS)
    for _ in range(WARM_UP + 1):
        dist.barrier()
        run.step()
    return run.last_events()


recorded_step = Recorded(__file__, "recorded_step", record)
"""The events of both ranks, as `events.Event` has them; times in seconds since the step began."""


if __name__ == "__main__":
    recorded_step.renew()
