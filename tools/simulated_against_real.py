"""Simulated ranks against real ones, widely: GPT-2 up to 124M on 2, 3 and 4 ranks, every stage, several ways to train.

    python -m tools.simulated_against_real                          # 360 cells, with up to 10 GB; 90 of them are large
    python -m tools.simulated_against_real --models gpt2-tiny --ranks 2 3

Each job is trained in real processes, and simulated rank by rank. All counts of all ranks must be equal, to the byte, and
so must the order of the events. FSDP2 goes through the same grid at stages 2 and 3. Prints a line a cell; exit status 1 if
one differs. `tests/simulation/test_simulation.py` and `tests/simulation/test_simulated_fsdp2.py` do the same with the tiny model.
"""

import argparse
import sys
import time
from dataclasses import replace
from itertools import product

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from zerocourse.comm import Comm
from zerocourse.formulas.units import gb
from zerocourse.launch.ranks import Ranks
from zerocourse.simulation import SimulatedJob, run_job, simulate
from zerocourse.simulation.fsdp2 import run_fsdp2, simulate_fsdp2

MODELS = ("gpt2-tiny", "gpt2-mini", "gpt2-laptop", "gpt2")  # 0.2M to 124M parameters
SEQ = 32  # tokens of a sample: few, because each step is also computed
WAYS = {"plain": {}, "accumulation": {"accumulation": 2}, "recompute": {"recompute": True}, "bf16": {"half": True},
        "all three": {"accumulation": 2, "recompute": True, "half": True}}


def comparable(result: dict) -> dict:
    """Without times. A simulated collective is complete when it begins, so it is never waited for."""
    events = [(event["verb"], event["unit"], event["bytes"], event["alive"])
              for event in result.get("events", ()) if event["verb"] != "wait"]
    return result | {"events": events}


def in_real_ranks(job: SimulatedJob, fsdp2: bool) -> dict:
    """On a rank: train it, as ours or as FSDP2. Collective."""
    job = replace(job, rank=dist.get_rank())
    return comparable(run_fsdp2(job, init_device_mesh("cpu", (job.ranks,))) if fsdp2 else run_job(job, Comm()))


def differences(job: SimulatedJob, fsdp2: bool, by_rank: list[dict]) -> list[str]:
    """What differs, on which rank."""
    found = []
    for rank, real in enumerate(by_rank):
        simulated = comparable((simulate_fsdp2 if fsdp2 else simulate)(replace(job, rank=rank)))
        found += [f"rank {rank}: {name} is {simulated[name]} simulated, {real[name]} real" if name != "events" else
                  f"rank {rank}: events" for name in real if simulated[name] != real[name]]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 3, 4))
    parser.add_argument("--stages", nargs="+", type=int, choices=range(4), default=range(4))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=tuple(WAYS))
    asked, wrong, number, began = parser.parse_args(), 0, 0, time.monotonic()
    print(f"{'model':12}{'ranks':>6}{'stage':>8}  {'way':14}{'peak of rank 0':>15}{'sent':>10}  verdict")
    for count in asked.ranks:
        ranks = Ranks(count, timeout=600, quiet=True)
        for model, stage, way, fsdp2 in product(asked.models, asked.stages, asked.ways, (False, True)):
            if fsdp2 and stage < 2:
                continue
            job = SimulatedJob(model, stage, count, seq=SEQ, **WAYS[way])
            by_rank = list(ranks.run(in_real_ranks, job, fsdp2))
            found = differences(job, fsdp2, by_rank)
            number, wrong = number + 1, wrong + bool(found)
            print(f"{model:12}{count:6}{'fsdp2 ' * fsdp2 + str(stage):>8}  {way:14}{gb(by_rank[0]['peak_bytes']):>15}"
                  f"{gb(by_rank[0]['sent_bytes']):>10}  {'; '.join(found) or 'equal'}", flush=True)
        ranks.close()
    print(f"{number - wrong} of {number} cells are equal to the byte on every rank, in {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    from tools import simulated_against_real  # ranks import a function from there, and could not from "__main__"

    sys.exit(simulated_against_real.main())
