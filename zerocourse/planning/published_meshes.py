"""Published runs with tensor and pipeline parallelism beside what `zerocourse plan` computes of their meshes, by formula.

Source: Narayanan et al. 2021, arXiv 2104.04473, table 1: GPTs of 2,048 tokens and 51,200 words in fp16 on nodes of eight
A100s with 80 GB, with recomputation. Their TFLOPS count what is computed again, by equation 3, and ours are of the same
number of operations. Not published there: the micro-batch, which is 1 here. Otherwise than there: activations between the
tensor-parallel regions are divided, too (sequence parallelism came a year later), and nothing but the products and their
traffic takes time. So what is predicted is too fast, by a quarter where a rank computes little at a time.
"""

from typing import NamedTuple

from .by_formula import computed
from .candidate import Candidate
from .question import ask
from .search import evaluate

SOURCE = "arXiv 2104.04473, table 1"
NODE = "8xA100"


class MeshRun(NamedTuple):
    """tflops: of each card, as published."""

    model: str
    tensor: int
    pipeline: int
    ranks: int
    batch: int
    tflops: float


RUNS = {run.model: run for run in (
    MeshRun("megatron-39b", 8, 2, 512, 1536, 138), MeshRun("megatron-146b", 8, 8, 1536, 2304, 148),
    MeshRun("megatron-530b", 8, 35, 2520, 2520, 163), MeshRun("megatron-1t", 8, 64, 3072, 3072, 163))}


def beside_published(name: str) -> dict:
    """Returns predicted and published TFLOPS of a card, their ratio, whether the published mesh `fits`, its bubble as a share of
    the step (with the wait for the last stage, which has the head besides), and the planner's own `choice`, whose step is
    `faster` by that factor: it has ZeRO, ZB-H1 and sequence parallelism to choose from, and need not recompute."""
    run = RUNS[name]
    question = ask(run.model, f"{run.ranks // 8}x{NODE}", run.batch, (run.ranks,), mesh=True, most_micro_batch=8)
    data = run.ranks // (run.tensor * run.pipeline)
    published = computed(question, Candidate(0, run.ranks, 1, run.batch // data, recompute=True, tensor=run.tensor, pipeline=run.pipeline))
    predicted, chosen = operations(name) / published.step_seconds / run.ranks / 1e12, evaluate(question)[0][0]
    return {"predicted": predicted, "published": run.tflops, "ratio": predicted / run.tflops, "fits": published.fits,
            "bubble": published.bubble / published.step_seconds, "choice": str(chosen.candidate),
            "faster": published.step_seconds / chosen.step_seconds}


def operations(name: str) -> float:
    """Of a step with recomputation: equation 3 of the source."""
    model = ask(name, NODE).model
    B, s, h, L, V = RUNS[name].batch, model.tokens, model.width, model.layers, model.vocabulary
    return 96 * B * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h))


def table() -> str:
    """The runs as Markdown."""
    rows = ["| model | cards | published mesh | bubble | published | predicted | ratio |", "|---|---|---|---|---|---|---|"]
    for name, run in RUNS.items():
        each = beside_published(name)
        data = run.ranks // (run.tensor * run.pipeline)
        rows.append(f"| {name} | {run.ranks:,} | tensor {run.tensor} × pipeline {run.pipeline} × data {data} | {each['bubble']:.1%} | "
                    f"{run.tflops} TFLOPS | {each['predicted']:.0f} TFLOPS | {each['ratio']:.2f} |")
    return "\n".join(rows)
