"""Published runs beside their simulation: how far is the cost model from what people measured on real clusters?

The one free number of the model, the share of the peak that matrix products reach, is fixed once: at `FIXED_ON`, a run
in which no link between nodes takes part. So the ratio of that run says nothing, and the others are simulated with what
came out. What a run did otherwise than its simulation is said with it, and a ratio is simulated / published, whatever
it is. The runs of FSDP on A100s come out right, and the others do not: their cards and programs reach other shares.

    beside_published("mpt-70b")         # simulates it, in about half a minute
    recorded_published()["mpt-70b"]     # what it once returned

`python -m zerocourse.simulation.published` records all of them again, in `published.json`.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .clusters import EFFICIENCY, find_cluster
from .one_rank import SimulatedJob, simulate_time

RECORDED = Path(__file__).with_suffix(".json")
TOKENS, TFLOPS = "tokens a second per card", "TFLOPS per card"  # what is published of a run
FIXED_ON = "mpt-7b"


class PublishedRun(NamedTuple):
    """rate: what was published, in `unit`. TFLOPS are of all that is computed, recomputation included.

    otherwise: what the run did and its simulation does not.
    """

    what: str
    source: str
    cluster: str
    job: SimulatedJob
    rate: float
    unit: str
    otherwise: str


LLM_FOUNDRY = "mosaicml/llm-foundry, scripts/train/benchmarking/README.md, A100 80GB with 1600 Gbps"
FMS_FSDP = "foundation-model-stack/fms-fsdp, README.md, table of 128 A100"
RUNS = {
    "mpt-7b": PublishedRun(
        "MPT 7B on one node of 8 A100, FSDP", LLM_FOUNDRY, "8xA100",
        SimulatedJob("mpt-7b", 3, 8, micro_batch=6, accumulation=2, half=True), 4641, TOKENS,
        "attention is a kernel of its own there, which here reads and writes as much"),
    "mpt-70b": PublishedRun(
        "MPT 70B on 64 A100, FSDP", LLM_FOUNDRY, "8x8xA100",
        SimulatedJob("mpt-70b", 3, 64, micro_batch=8, accumulation=4, half=True, recompute=True), 410, TOKENS,
        "its precision was bf16 and PURE, which may mean that states were in bf16 too"),
    "mpt-13b": PublishedRun(
        "MPT 13B on 64 H100, FSDP", LLM_FOUNDRY.split(", A100", maxsplit=1)[0] + ", H100 80GB BF16", "64x8xH100",
        SimulatedJob("mpt-13b", 3, 64, micro_batch=2, half=True), 4800, TOKENS,
        "what joined the nodes is not published"),
    "llama-7b": PublishedRun(
        "Llama 2 7B on 128 A100, FSDP", FMS_FSDP, "16x8xA100",
        SimulatedJob("llama2-7b", 3, 128, micro_batch=2, half=True), 3760, TOKENS,
        "parameters were divided within each node only (HSDP), here among all ranks"),
    "llama-70b": PublishedRun(
        "Llama 2 70B on 128 A100, FSDP", FMS_FSDP, "16x8xA100",
        SimulatedJob("llama-70b", 3, 128, micro_batch=6, half=True, recompute=True), 380, TOKENS,
        "not known"),
    "zero-13b": PublishedRun(
        "ZeRO-2, 13B parameters on 128 V100 without model parallelism", "ZeRO paper, arXiv 1910.02054, section 10.4, "
        "figure 4 and table 10: over 40 TFLOPS per card with a batch of 2 on each", "25xdgx2",
        SimulatedJob("gpt-13b", 2, 128, micro_batch=2, half=True, recompute=True), 40, TFLOPS,
        "fp16 with a loss scale, attention that keeps T x T scores, checkpoints divided or offloaded (ZeRO-R)"),
    "bloom-176b": PublishedRun(
        "BLOOM, 176B parameters on 384 A100", "BigScience's model card, arXiv 2211.05100: about 150 TFLOPS per card",
        "48x8xA100", SimulatedJob("bloom-176b", 3, 384, micro_batch=5, half=True, recompute=True), 150, TFLOPS,
        "the model was cut by tensors (4) and by layers (12), with stage 1 over the other 8; here stage 3 over all"),
}


def beside_published(name: str, efficiency: float = EFFICIENCY) -> dict:
    """The run simulated. Returns simulated and published (in `unit`), their ratio, step_seconds, compute_seconds,
    exposed_seconds, peak_bytes, and whether that `fits` the card."""
    run = RUNS[name]
    cluster = find_cluster(run.cluster)
    cluster = replace(cluster, machine=replace(cluster.machine, efficiency=efficiency))
    result = simulate_time(run.job, cluster)
    seconds = result["step_seconds"]
    rate = (result["tokens_per_second"] / run.job.ranks if run.unit == TOKENS else result["flops"] / seconds / 1e12)
    return {"simulated": rate, "published": run.rate, "unit": run.unit, "ratio": rate / run.rate,
            **{part: result[part] for part in ("step_seconds", "compute_seconds", "exposed_seconds", "peak_bytes")},
            "fits": result["peak_bytes"] <= cluster.machine.memory}


def recorded_published() -> dict[str, dict]:
    """By name what `beside_published` once returned for it."""
    return json.loads(RECORDED.read_text())


def predicted() -> dict[str, float]:
    """The recorded ratios of the runs on which nothing was fixed."""
    return {name: each["ratio"] for name, each in recorded_published().items() if name != FIXED_ON}


def table() -> str:
    """The recorded runs as Markdown."""
    rows = ["| run | published | simulated | ratio | what the run did otherwise |", "|---|---|---|---|---|"]
    for name, each in recorded_published().items():
        run = RUNS[name]
        rows.append(f"| {run.what} | {each['published']:,.0f} {run.unit} | {each['simulated']:,.0f} | "
                    f"{each['ratio']:.2f} | {run.otherwise} |")
    return "\n".join(rows)


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: beside_published(name) for name in RUNS}, indent=1) + "\n")
    print(table())
