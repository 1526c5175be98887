"""Tensor parallelism and ZeRO-3 on one limited link: seconds of a step, and the events of one, by the tokens of the batch.

Recorded, because not every machine can have such a link: `python -m zerocourse.course.chapters.tensor_parallel.two_ways`
records another one.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from ....comm import Comm
from ....launch.link import limited_link
from ....measure.recorded import Recorded
from ....models.gpt2 import GPT, GPTConfig
from ....parallel.tensor import tensor_parallel
from ....zero.extras import shard

LAYERS, WIDTH, BLOCK, VOCABULARY = 4, 128, 32, 64
BATCHES = 2, 6, 12, 18, 36, 72  # samples of BLOCK tokens in the batch of both ranks
RATE_MBIT, ROUNDS, SHOWN = 150, 5, 18  # of the link; of which the median counts; samples of the batch whose events are kept


def record() -> dict:
    """{"rows": tokens and seconds of both, "events": of rank 0 in one step of each}. Raises BadInput without such a link."""
    with limited_link(RATE_MBIT) as link:
        nodes = link.launch(measure, quiet=True, device="cpu", timeout=600)
    ranks = sorted((result for node in nodes for result in node), key=lambda result: result["rank"])
    return {"rate_mbit": RATE_MBIT, "layers": LAYERS, "width": WIDTH, "rows": ranks[0]["rows"], "events": ranks[0]["events"]}


def measure() -> dict:
    """On a rank. Collective."""
    comm, rows, events = Comm(), [], {}
    for samples in BATCHES:
        torch.manual_seed(0)
        tokens = torch.randint(VOCABULARY, (samples, BLOCK + 1))
        ways = {"tensor parallelism": by_tensor(tokens), "ZeRO-3": by_zero(tokens)}
        seconds = {name: [] for name in ways}
        for _ in range(ROUNDS + 2):
            for name, (step, _) in ways.items():
                dist.barrier()
                begun = time.perf_counter()
                step()
                dist.barrier()
                seconds[name].append(time.perf_counter() - begun)
        rows.append({"tokens": samples * BLOCK} | {name: round(median(each[2:]), 4) for name, each in seconds.items()})
        if samples == SHOWN:
            events = {name: last_events(recorder) for name, (_, recorder) in ways.items()}
    return {"rank": comm.rank, "rows": rows, "events": events}


def model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(LAYERS, 4, WIDTH, block_size=BLOCK, vocab_size=VOCABULARY))


def by_tensor(tokens: torch.Tensor) -> tuple[Callable[[], None], object]:
    """A step on all samples, with half of each matrix, and the recorder of its events."""
    comm = Comm()
    cut = tensor_parallel(model(), comm)
    for number, block in enumerate(cut.h):
        spans(block, f"h.{number}", comm.recorder)

    def step() -> None:
        comm.recorder.next_step()
        cut(tokens[:, :-1], tokens[:, 1:]).backward()
        cut.zero_grad()
    return step, comm.recorder


def by_zero(tokens: torch.Tensor) -> tuple[Callable[[], None], object]:
    """A step on this rank's half of the samples, with a third stage that prefetches."""
    comm = Comm()
    own = tokens.chunk(comm.world_size)[comm.rank]
    whole = model()
    sharded, optimizer = shard(whole, torch.optim.SGD(whole.parameters(), lr=0.0), stage=3, comm=comm)

    def step() -> None:
        sharded(own[:, :-1], own[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step, comm.recorder


def spans(module: torch.nn.Module, name: str, recorder) -> None:
    """Record the module's forward and backward."""
    begun = {}

    def begin(verb: str) -> None:
        begun[verb] = recorder.clock()

    def end(verb: str) -> None:
        recorder.record(verb, name, begun[verb])

    module.register_forward_pre_hook(lambda *_: begin("forward"))
    module.register_forward_hook(lambda *_: end("forward"))
    module.register_full_backward_pre_hook(lambda *_: begin("backward"))
    module.register_full_backward_hook(lambda *_: end("backward"))


def last_events(recorder) -> list[dict]:
    """Of the last step, with times since its first."""
    events = recorder.of_step(recorder.step) or recorder.of_step(recorder.step - 1)
    kept = [{name: event[name] for name in ("rank", "verb", "unit", "start", "end", "alive")} for event in events]
    begun = min((event["start"] for event in kept), default=0.0)
    return [event | {edge: round(event[edge] - begun, 4) for edge in ("start", "end")} for event in kept]


recorded = Recorded(__file__, "recorded_two_ways", record)
"""What `record` returned. Seconds are those of the slower rank."""


if __name__ == "__main__":
    recorded.renew()
