"""One step at each stage on two ranks, recorded once and kept in `recorded_stages.json`: what happened, and after each
event the bytes that every flat buffer held. Stories, filmstrips and pictures of buckets are drawn from it.
`python -m zerocourse.course.show.pictures.recorded_stages` records others in their place.
"""

import time
from dataclasses import dataclass
from functools import cache

from ....launch.launcher import launch
from ....measure.recorded import Recorded
from ....measure.stage_meter import KINDS
from ....models.gpt2 import GPTConfig
from .deep_step import step_of

CONFIG = GPTConfig(4, 2, 32, block_size=16, vocab_size=64)
RANKS = 2
TENSORS = ("full", "shard", "bucket", "grad_shard")  # of a flat buffer, see `zero.buffers.buffer`
SIZES = (*TENSORS, "received")  # and what arrives from other ranks while its bucket is reduced


@dataclass(frozen=True)
class Buffer:
    """A flat buffer as one rank has it. unit: whose it is.   elements, with padding.   own: its slice, (start, stop).

    optimizer: bytes of the optimizer's states.   params: the parameters' elements by name, in their order.
    """

    unit: str
    elements: int
    own: tuple[int, int]
    optimizer: int
    params: dict[str, int]


@dataclass(frozen=True)
class RecordedRank:
    """events: as `events.Event` has them; the first, "start", is before the step, and "gradient" is one that arrived.

    held: after each event, by buffer, the bytes of each of `SIZES`.   buffers: by name, in the model's order.
    """

    buffers: dict[str, Buffer]
    events: list[dict]
    held: list[dict[str, dict[str, int]]]


@cache
def recorded_stage(stage: int) -> list[RecordedRank]:
    """The recorded step of a stage, rank by rank."""
    ranks = []
    for rank, kept in enumerate(recorded_stages()[str(stage)]):
        buffers = {name: Buffer(unit, elements, tuple(own), optimizer, params)
                   for name, (unit, elements, own, optimizer, params) in kept["buffers"].items()}
        held, events = [dict.fromkeys(buffers, dict.fromkeys(SIZES, 0))], []
        for verb, unit, start, end, nbytes, kinds, changed in kept["events"]:
            events.append({"rank": rank, "step": 0, "verb": verb, "unit": unit, "start": start, "end": end, "bytes": nbytes,
                           "alive": sum(kinds), "kinds": dict(zip(KINDS, kinds, strict=True))})
            held.append(held[-1] | {name: dict(zip(SIZES, sizes, strict=True)) for name, sizes in changed.items()})
        ranks.append(RecordedRank(buffers, events, held[1:]))
    return ranks


def record() -> dict[int, list[dict]]:
    """Record a step at each stage, on real ranks. Returns what the file has."""
    ranks = launch(record_here, nproc=RANKS, quiet=True, device="cpu", env={"OMP_NUM_THREADS": "1"})
    for stage in range(4):
        begin = min(event[2] for rank in ranks for event in rank[stage]["events"])
        for rank in ranks:
            for event in rank[stage]["events"]:
                event[2:4] = (round(seconds - begin, 5) for seconds in event[2:4])
    return {stage: [rank[stage] for rank in ranks] for stage in range(4)}


def record_here(stages=range(4)) -> dict[int, dict]:
    """The same on this rank, with times of its clock. Collective."""
    return {stage: record_one(stage) for stage in stages}


def record_one(stage: int) -> dict:
    buffers, held = {}, []

    def prepare(model, optimizer) -> None:
        zero = model.zero
        count, on_gradient = zero.recorder.kinds, zero.on_gradient
        for flat in zero.flats:
            states = [optimizer.state[part].values() for part in flat.shard_params.values()]
            nbytes = sum(value.nbytes for of_part in states for value in of_part if value.dim())
            buffers[flat.name] = (zero.unit_of[flat].name, flat.layout.padded, (flat.own.start, flat.own.stop), nbytes,
                                  {key: param.numel() for key, param in flat.params.items()})

        def count_all() -> dict[str, int]:
            kinds = count()
            held.append({flat.name: [*(flat.bytes_by_tensor[name] for name in TENSORS), flat.received_bytes]
                         for flat in zero.flats})
            return kinds

        def arrived(flat, key, param) -> None:
            begun, nbytes = time.perf_counter(), param.nbytes
            on_gradient(flat, key, param)
            zero.recorder.record("gradient", f"{flat.name}/{key}", begun, nbytes)

        zero.recorder.kinds = count_all
        if stage == 2:  # the others' pictures do not need them
            zero.on_gradient = arrived
        zero.recorder.record("start", "step", time.perf_counter())

    events = step_of(stage, CONFIG, prepare)
    before = [{}, *held]
    return {"buffers": buffers, "events": [
        [event["verb"], event["unit"], event["start"], event["end"], event["bytes"], list(event["kinds"].values()),
         {name: sizes for name, sizes in now.items() if then.get(name) != sizes}]
        for event, now, then in zip(events, held, before, strict=False)]}


recorded_stages = Recorded(__file__, "recorded_stages", record)


if __name__ == "__main__":
    recorded_stages.renew()
