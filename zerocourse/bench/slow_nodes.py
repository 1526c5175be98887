"""Stage 3, hybrid sharding and ZeRO++ on two nodes of two ranks each, over a cable of limited rate: bytes on the wire, and seconds.

    sudo python -m zerocourse.bench.slow_nodes [--mbit 100] [--width 256] [--layers 4] [--rounds 5] [--record]

The model trains in bf16. Bytes are those that the cable's interface counts, headers and all, so they can be compared with
what the ledgers say. Ψ is in bytes of bf16 here, and n is 2 nodes of S = 2 ranks. Each of stage 3's three passes sends
S·Ψ·(n - 1)/n from a node, which is Ψ here. A hybrid gathers inside the nodes, and sends twice Ψ·(n - 1)/n for its gradients. A
pass in two hops sends Ψ·(n - 1)/n, and ZeRO++'s are 0.5, 0 and 0.25 of that.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from ..comm import Comm
from ..course.chapters.slow_links.cable import recorded
from ..launch.link import DEVICE, limited_link
from ..layout.mesh import Mesh
from ..models.gpt2 import GPT, GPTConfig
from ..parallel.mesh_comms import MeshComms
from ..parallel.plusplus import zero_plus_plus
from ..zero.extras import shard

WAYS = {"stage 3": None, "hybrid": None, "in two hops": (False, False, False), "qwZ": (True, False, False), "hpZ": (False, True, False),
        "qgZ": (False, False, True), "ZeRO++": (True, True, True)}


def on_the_wire() -> int:
    """Bytes that this node has sent over the cable."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()  # of this process's own network
    return next(int(line.split()[9]) for line in lines if line.strip().startswith(f"{DEVICE}:"))


def steps(config: GPTConfig, rounds: int) -> dict[str, dict[str, float]]:
    """On a rank, for each of WAYS: {"seconds": of a step, "wire": bytes of this node, "params": of the model, "loss"}."""
    world = torch.distributed.get_world_size()
    comms, models = MeshComms(Mesh({"nodes": 2, "node": world // 2}, per_node=world // 2), timeout=60), {}
    for name, way in WAYS.items():
        torch.manual_seed(0)
        model = GPT(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if way is None:
            comm = comms.groups("node", replicate="nodes") if name == "hybrid" else None
            models[name] = shard(model, optimizer, stage=3, comm=comm, param_dtype=torch.bfloat16)
        else:
            weights, node_copy, gradients = way
            models[name] = zero_plus_plus(model, optimizer, comms, weights, node_copy, gradients, param_dtype=torch.bfloat16)
    found = {name: {"seconds": [], "wire": [], "loss": 0.0} for name in models}
    generator, meet = torch.Generator().manual_seed(comms.rank), Comm()
    for number in range(rounds + 1):
        tokens = torch.randint(config.vocab_size, (2, config.block_size + 1), generator=generator)
        for name, (model, optimizer) in models.items():
            meet.on_any_rank([False], tokens.device)
            before = on_the_wire()
            meet.on_any_rank([False], tokens.device)  # no rank of the node begins before both have read the counter
            began = time.perf_counter()
            loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            meet.on_any_rank([False], tokens.device)
            if number:
                found[name]["seconds"].append(time.perf_counter() - began)
                found[name]["wire"].append(on_the_wire() - before)
            found[name]["loss"] = loss.item()
    params = config.params
    return {name: {"seconds": statistics.median(each["seconds"]), "wire": statistics.median(each["wire"]),
                   "loss": each["loss"], "params": params} for name, each in found.items()}


def measure(config: GPTConfig, mbit: float, rounds: int) -> dict[str, dict[str, float]]:
    with limited_link(mbit) as link:
        nodes = link.launch(steps, config, rounds, nproc=2, quiet=True, device="cpu")
    return nodes[0][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, default in (("mbit", 100), ("width", 256), ("layers", 4), ("rounds", 5)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--record", action="store_true", help="keep it for chapter 20")
    given = parser.parse_args()
    config = GPTConfig(given.layers, 4, given.width, block_size=32, vocab_size=256)
    found = measure(config, given.mbit, given.rounds)
    if given.record:
        recorded.keep(found)
    psi = 2 * config.params
    print(f"Ψ in bf16: {psi:,} bytes; two nodes of two ranks, {given.mbit} Mbit/s between them")
    for name, each in found.items():
        print(f"{name:12} {each['wire']:12,.0f} bytes on the wire from a node = {each['wire'] / psi:5.3f} Ψ   "
              f"{each['seconds']:6.3f} s a step, {each['seconds'] / found['stage 3']['seconds']:5.2f} of stage 3's   "
              f"loss {each['loss']:.4f}")


if __name__ == "__main__":
    main()
