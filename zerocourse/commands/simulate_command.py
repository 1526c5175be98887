"""What one rank of many holds and sends in a step, by running the stages themselves on tensors without memory.

  zerocourse simulate --model gpt2-xl --ranks 1024
  zerocourse simulate --model llama-7b --stage 2 --ranks 64 --dtype bf16 --recompute
  zerocourse simulate --model llama-7b --ranks 512 --dtype bf16 --cluster 64x8xH100
  zerocourse simulate --model llama-7b --ranks 512 --dtype bf16 --cluster 64x8xH100 --shard-ranks 8
  zerocourse simulate --model llama-7b --ranks 1024 --dtype bf16 --recompute --peer fsdp2
  zerocourse simulate --model mixtral-8x7b --ranks 64 --dtype bf16 --recompute --experts-over 8 --cluster 8x8xH100
"""

import time

from ..errors import BadInput
from ..formulas.units import both, gb
from . import Outcome
from .arguments import MOST_RANKS, Checked, whole

HELP = "bytes that one rank of many holds and sends, by running the stages on tensors without memory"
MOST_SIMULATED = 100_000  # ranks: each layout is a list of as many slices


def configure(parser):
    parser.add_argument("--model", required=True, metavar="NAME",
                        help="gpt2-tiny to gpt2-xl, llama-7b to llama-1t, mixtral-8x7b, qwen3-30b-a3b, or the path of a Hugging Face config.json")
    parser.add_argument("--stage", action=Checked, read=whole(0, 3), default=3, help="0 to 3 (default 3)")
    positive = {"action": Checked, "read": whole(1, MOST_RANKS)}
    parser.add_argument("--ranks", action=Checked, read=whole(1, MOST_SIMULATED), default=8, metavar="N",
                        help="world size (default 8)")
    parser.add_argument("--rank", action=Checked, read=whole(0, MOST_SIMULATED), default=0, metavar="R",
                        help="which of them (default 0)")
    parser.add_argument("--micro-batch", **positive, default=1, metavar="B", help="samples in a micro-batch (default 1)")
    parser.add_argument("--seq", **positive, metavar="T", help="tokens in a sample (default: the model's most)")
    parser.add_argument("--accumulation", **positive, default=1, metavar="G", help="micro-batches per step (default 1)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32",
                        help="of parameters and gradients; bf16 has fp32 master weights (default fp32)")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing of every block")
    parser.add_argument("--shard-ranks", **positive, metavar="S",
                        help="ranks that divide a buffer, as those of a node; the others hold replicas (default: all divide it)")
    parser.add_argument("--experts-over", **positive, default=1, metavar="EP",
                        help="ranks that have different experts of a layer (default 1: every rank has all); all experts are equally busy")
    parser.add_argument("--like", choices=("gloo", "nccl"),
                        help="whose memory a reduction takes: N - 1 slices, or one (default gloo; nccl on a cluster or "
                             "with a peer)")
    parser.add_argument("--peer", choices=("fsdp2",),
                        help="also simulate torch's FSDP2 in place of stage 3 (or 2: kept until the backward)")
    parser.add_argument("--cluster", metavar="NAME",
                        help="also say how long a step takes there: 2xT4, dgx2, 25xdgx2, 8xA100, 16x8xA100, 48x8xA100, "
                             "64x8xH100 or another number of its nodes, or a JSON file of your own, like an entry of simulation/clusters.json")


def run(args) -> Outcome:
    from ..simulation import SimulatedJob, find_cluster, simulate, simulate_time  # here: torch takes two seconds to import
    job = SimulatedJob(args.model, args.stage, args.ranks, args.rank, args.micro_batch, args.seq, args.accumulation,
                       args.dtype == "bf16", args.recompute, args.shard_ranks, experts_over=args.experts_over)
    cluster = None if args.cluster is None else find_cluster(args.cluster)
    peer = _peer(job) if args.peer else None
    began = time.perf_counter()
    like = args.like or ("nccl" if cluster or peer else "gloo")
    result = simulate(job, like) if cluster is None else simulate_time(job, cluster, like)
    result.pop("events")
    text = _text(args, result, time.perf_counter() - began)
    text += (_time(args, result, cluster) if cluster else "") + (_beside(result, *peer) if peer else "")
    return Outcome(text, result | ({"peers": {args.peer: peer[0]}} if peer else {}))


def _peer(job) -> tuple[dict, float]:
    """What FSDP2 holds and sends, and the seconds that this simulation took."""
    from ..simulation.fsdp2 import simulate_fsdp2
    if job.experts_over > 1:
        raise BadInput("--peer fsdp2 has all experts on every rank: leave out --experts-over")
    began = time.perf_counter()
    return simulate_fsdp2(job), time.perf_counter() - began


def _text(args, result: dict, seconds: float) -> str:
    peak = result["peak_kinds"]
    lines = [(f"{args.model}, {result['params']:,} parameters: rank {args.rank} of {args.ranks} at stage {args.stage}, "
              f"in {args.dtype}, simulated in {seconds:.0f} s"), "", f"{'':14}{'after a step':>24}{'at the peak':>24}"]
    kinds = ("parameters", "gradients", "optimizer")
    lines += [f"{kind:14}{both(result[f'{kind}_bytes']):>24}{both(peak[kind]):>24}" for kind in kinds]
    rest = result["peak_bytes"] - sum(peak[kind] for kind in kinds)
    lines += [f"{'everything else':14}{'':>23}{both(rest):>24}",
              f"{'total':14}{both(result['total_bytes']):>24}{both(result['peak_bytes']):>24}", "",
              "sent in a step: " + ", ".join(f"{verb} {gb(nbytes)}" for verb, nbytes in sorted(result["sent"].items()))
              + (f"; of it {gb(result['replicas_bytes'])} to replicas in other groups" if args.shard_ranks else ""),
              "Gradients are counted just before the update, the others after it."]
    return "\n".join(lines)


def _time(args, result: dict, cluster) -> str:
    seconds, flops, machine = result["step_seconds"], result["flops"], cluster.machine
    room = "it fits" if result["peak_bytes"] <= machine.memory else "too large"
    return "\n".join([
        "", "", f"On {args.cluster}, whose cards have {both(machine.memory)} ({room}), at {machine.efficiency:.0%} of their peak:",
        (f"a step takes {seconds:.3g} s. In {result['compute_seconds']:.3g} s of it the rank computes, and in "
         f"{result['exposed_seconds']:.3g} s it waits for its link, which is busy for {result['wire_seconds']:.3g} s."),
        f"All ranks together: {result['tokens_per_second']:,.0f} tokens a second, {flops / seconds / 1e12:.3g} TFLOPS per rank.",
        trust(), f"Figures: {cluster.source}."])


def trust() -> str:
    """How far the times may be off, from where that was tried."""
    from ..course.trials.cost_trial import largest_error, recorded_cost
    from ..simulation.published import predicted
    ratios = predicted().values()
    return (f"How far to trust it: such times were within {largest_error(recorded_cost()):.0%} of the measured ones at "
            f"stages 1, 2 and 3 on two processors over a limited link, and the rates of {len(ratios)} published runs on "
            f"GPUs came out at {min(ratios):.2f} to {max(ratios):.2f} times what was published (simulation/published.py).")


def _beside(ours: dict, theirs: dict, seconds: float) -> str:
    rows = [(kind, f"{kind}_bytes") for kind in ("parameters", "gradients", "optimizer", "total")]
    rows += [("peak", "peak_bytes"), ("sent in a step", "sent_bytes"), ("and padding", "padding_bytes")]
    lines = ["", "", f"Beside torch's FSDP2, simulated in {seconds:.0f} s and counted by the same ledger:", "",
             f"{'':14}{'zerocourse':>24}{'FSDP2':>24}"]
    lines += [f"{name:14}{both(ours[key]):>24}{both(theirs[key]):>24}" for name, key in rows]
    lines.append("What a reduction takes until it is complete is counted as on NCCL, unless --like says gloo.")
    return "\n".join(lines)
