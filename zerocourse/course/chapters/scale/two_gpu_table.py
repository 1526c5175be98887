"""A published table of memory on two GPUs, three ways: by formula, by simulation, and by really training on two ranks.

    python -m zerocourse.course.chapters.scale.two_gpu_table                 # prints the table
    python -m zerocourse.course.chapters.scale.two_gpu_table small medium    # trains these sizes again here, and keeps what it measures

The published figures are of Tiny-DeepSpeed's README (github.com/liangyuwang/Tiny-DeepSpeed). It states no batch, length,
dtype or method; these are the defaults of the repository's examples: fp32, one sample of 1,024 tokens, a vocabulary of
50,304, no biases in linear layers, a head of its own, AdamW, and an attention that keeps its T x T scores. What was
measured is in `two_gpu_table.json`: the ledger's peak of each rank in its second step, and how much the process grew.
"""

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch.nn.attention import SDPBackend, sdpa_kernel

from ....comm import Comm
from ....errors import BadInput
from ....formulas.peak import gpt2_peak_bytes
from ....formulas.states import FP32
from ....formulas.units import gb
from ....launch.ranks import Ranks
from ....measure.recorded import Recorded
from ....simulation import SimulatedJob, run_job, simulate
from ....simulation.shapes import GPTS

recorded = Recorded(__file__, "two_gpu_table")  # what was measured, by size and mode
GB = 10**9
MODELS = {"tiny": "gpt2-tiny", "small": "gpt2-untied", "medium": "gpt2-medium-untied", "large": "gpt2-large-untied"}
MODES = {"one GPU": (0, 1), "DDP": (0, 2), "ZeRO-1": (1, 2), "ZeRO-2": (2, 2), "ZeRO-3": (3, 2)}  # stage, ranks
PUBLISHED = {"small": (4.65, 4.75, 4.08, 3.79, 3.69), "medium": (10.12, 10.23, 8.65, 8.25, 7.73),
             "large": (17.35, 17.46, 14.08, 12.89, 11.01)}  # GB, in the order of MODES
MEASURED = ("peak_bytes", "resident_peak_bytes")
MOST_SECONDS = 1200  # of a cell: a step of the medium model takes a minute on a slow core


@dataclass(frozen=True)
class TwoGpuCell:
    """One size in one mode. Bytes of the fullest rank.   measured, process: None where the size was not trained."""

    size: str
    mode: str
    formula: int
    simulated: int
    fused: int  # simulated with an attention that keeps no scores
    measured: int | None
    process: int | None  # by how much it grew: also what allocator, kernels and gloo take
    published: int
    kept_logits: int  # of the step before, which the repository's loop still refers to: `_, loss = model(...)`

    @property
    def unexplained(self) -> int:
        """What the published figure has more than the simulated one and those logits."""
        return self.published - self.simulated - self.kept_logits


def job_of(size: str, mode: str) -> SimulatedJob:
    """Raises BadInput for a size or a mode that the table does not have."""
    if size not in MODELS or mode not in MODES:
        raise BadInput(f"the table has no cell {size!r}, {mode!r}: it has {', '.join(MODELS)}, and {', '.join(MODES)}")
    return SimulatedJob(MODELS[size], *MODES[mode])


def by_formula(size: str, mode: str) -> int:
    """The estimate of `gpt2_peak_bytes`, which counts attention scores as Korthikanti et al. do, with dropout masks."""
    config, (stage, ranks) = GPTS[MODELS[size]], MODES[mode]
    return gpt2_peak_bytes(config, stage, ranks, 1, config.block_size, FP32, recompute="none")


@cache
def by_simulation(size: str, mode: str) -> int:
    """Seconds of one core, and no memory."""
    with sdpa_kernel([SDPBackend.MATH]):
        return simulate(job_of(size, mode))["peak_bytes"]


@cache
def with_fused_attention(size: str, mode: str) -> int:
    return simulate(job_of(size, mode))["peak_bytes"]


def by_training(size: str, mode: str) -> dict[str, list[int]]:
    """Train two steps in real ranks. Returns, by rank, peak_bytes and resident_peak_bytes, the growth of the process."""
    job = job_of(size, mode)
    ranks = Ranks(job.ranks, timeout=MOST_SECONDS, quiet=True, device="cpu")
    try:
        by_rank = ranks.run(peak_here, job)
    finally:
        ranks.close()
    return {name: [of_rank[name] for of_rank in by_rank] for name in by_rank[0]}


def peak_here(job: SimulatedJob) -> dict[str, int]:
    """On a rank. Collective."""
    comm = Comm()
    Path("/proc/self/clear_refs").write_text("5")  # the process's peak is now what it has
    before = resident("VmRSS")
    with sdpa_kernel([SDPBackend.MATH]):
        peak = run_job(SimulatedJob(job.model, job.stage, job.ranks, comm.rank), comm)["peak_bytes"]
    return {"peak_bytes": peak, "resident_peak_bytes": resident("VmHWM") - before}


def resident(name: str) -> int:
    """Bytes of this process's memory, now (VmRSS) or at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def cells(size: str) -> list[TwoGpuCell]:
    """The five modes of a published size."""
    config, measured = GPTS[MODELS[size]], recorded().get(size, {})
    return [TwoGpuCell(size, mode, by_formula(size, mode), by_simulation(size, mode), with_fused_attention(size, mode),
                       *(max(measured[mode][name]) if mode in measured else None for name in MEASURED),
                       round(published * GB),
                       4 * config.block_size * config.vocab_size)
            for mode, published in zip(MODES, PUBLISHED[size], strict=True)]


def table(sizes=tuple(PUBLISHED)) -> str:
    """All of it in GB (10⁹ bytes), and what of the published figures remains."""
    columns = {"formula": 9, "fused": 8, "simulated": 11, "measured": 10, "process": 9, "published": 11,
               "kept logits": 13, "unexplained": 13}
    lines = [f"{'GPT-2':17}" + "".join(name.rjust(width) for name, width in columns.items())]
    for cell in (cell for size in sizes for cell in cells(size)):
        values = {name: getattr(cell, name.replace(" ", "_")) for name in columns}
        lines.append(f"{cell.size:8}{cell.mode:9}" + "".join(
            ("" if value is None else f"{value / GB:.2f}").rjust(columns[name]) for name, value in values.items()))
    return "\n".join(lines)


def drops(size: str) -> dict[str, tuple[int, int]]:
    """By mode: how many bytes less than under DDP, simulated and published. What all modes share drops out of it."""
    ddp, *others = cells(size)[1:]
    return {cell.mode: (ddp.simulated - cell.simulated, ddp.published - cell.published) for cell in others}


def account(sizes=tuple(PUBLISHED)) -> str:
    """The differences between simulated and published figures, in words."""
    lines = []
    for size in sizes:
        here = cells(size)
        scores, rests = here[0].simulated - here[0].fused, [cell.unexplained for cell in here]
        lines.append(f"{size}: the scores that the attention keeps are {gb(scores)} of the simulated figures. The "
                     f"published ones may also have the logits of the step before, {gb(here[0].kept_logits)}.")
        lines.append(f"  Beyond both, {min(rests) / GB:.2f} to {max(rests) / GB:.2f} GB of the published figures remain."
                     + (" Below zero, the run held less than our stages do, so its settings or its stages were others."
                        if min(rests) < 0 else ""))
        for mode, (ours, theirs) in drops(size).items():
            lines.append(f"  {mode} saves {ours / GB:.2f} GB over DDP when simulated, and {theirs / GB:.2f} as "
                         "published.")
    lines.append("What remains cannot be measured here. A GPU's memory also has a CUDA context, the workspaces of its "
                 "libraries,\nNCCL's buffers, and what the allocator holds and does not use, and the README does not say "
                 "which of these it counts.")
    return "\n".join(lines)


def record(size: str) -> None:
    """Train the size in every mode that fits this machine's free memory, and keep what was measured."""
    for mode, (_, ranks) in MODES.items():
        needs, free = ranks * by_simulation(size, mode), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        if 1.1 * needs > free:
            print(f"{size}, {mode}: left out, as {ranks} ranks need {gb(needs)} by the simulation, and {gb(free)} are "
                  "free")
            continue
        everything = recorded()
        everything.setdefault(size, {})[mode] = by_training(size, mode)
        recorded.keep(everything)
        print(f"{size}, {mode}: {everything[size][mode]}", flush=True)


if __name__ == "__main__":
    from . import two_gpu_table  # ranks import a function from there, and could not from "__main__"

    for size in sys.argv[1:]:
        two_gpu_table.record(size)
    if not sys.argv[1:]:
        print(table(), account(), sep="\n\n")
