"""Our stages beside torch's DDP, ZeroRedundancyOptimizer and FSDP2, and DeepSpeed where it is installed, on the CPU.

The same GPT-2, text, seed, fused AdamW and number of threads in every mode, and nothing else is set for anybody: no
allocator, no garbage collector. Memory and bytes are metered one mode at a time; times are taken in other processes,
without meters: each mode has its own, and in every round each takes a turn. They are judged as ratios within a round.
Each peer has the fastest of three bucket sizes. A second table is of a model of 96 small units with short samples, in
which the cost of a unit shows. Writes report.md, bench.png and bench.json to --out.

Exit status 1 when losses disagree, or when ours hold or send other bytes than the formulas say; never for a time.
--json: {"ok", "modes": {mode: {parameters_bytes, gradients_bytes, optimizer_bytes, total_bytes, peak_bytes,
heap_peak_bytes, wire_bytes, sent_bytes: a list, one entry per rank; losses; per rank and step: step_seconds,
processor_seconds (user and system, all threads), page_faults; ratios: {other: median, spread (distance of the
quartiles), rounds, processor}, bucket}}, "profile": {mode, or "alone" for the floor: processor time by thread},
"noisy": reasons why times cannot be judged, "many_units": the same object for the 96 units or null, ...}. wire_bytes is
the loopback counter divided by the ranks; a peer's sent_bytes is the same. What could not be metered is null.
"""

import importlib.metadata
import importlib.util
import json
import os
import tempfile
from pathlib import Path

from . import Outcome

HELP = "measure our stages beside torch's and DeepSpeed's: bytes held, peak, bytes sent, step time as a ratio"


def configure(parser):
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--layers", type=int, default=8, help="of the GPT-2 (default 8)")
    parser.add_argument("--width", type=int, default=512, help="of the GPT-2 (default 512)")
    parser.add_argument("--vocab", type=int, default=8192, help="rows of its token embedding (default 8192)")
    parser.add_argument("--tokens", type=int, default=128, metavar="T", help="tokens in a sample (default 128)")
    parser.add_argument("--batch", type=int, default=8, metavar="B", help="samples per step, of all ranks (default 8)")
    parser.add_argument("--threads", type=int, default=1, help="threads a rank computes with (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each mode (default 7; judged from 5 on)")
    parser.add_argument("--modes", metavar="NAMES", help="such as zero3,fsdp2 (default: all that are installed)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further round after so long")
    parser.add_argument("--data", metavar="PATH", help="text: a file or folder (default: Python's standard library)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-many-units", action="store_true", help="leave out the model of 96 small units")
    parser.add_argument("--quick", action="store_true", help="a very small model and two rounds: does it run at all?")
    parser.add_argument("--out", type=Path, default=Path("output/bench"), metavar="DIR", help="default output/bench")


def run(args) -> Outcome:
    from ..bench import BenchSettings, find_modes, measure
    from ..bench.report import summarise, table

    modes = find_modes(args.modes, lambda package: importlib.util.find_spec(package) is not None)
    settings = BenchSettings(args.layers, args.width, args.vocab, args.tokens, args.batch, args.ranks, args.threads,
                             args.rounds, budget=args.budget, seed=args.seed, source=args.data)
    if args.quick:
        settings = BenchSettings(2, 64, 256, 32, 2 * args.ranks, args.ranks, rounds=2, tuning_rounds=0, fresh=False,
                                 seed=args.seed, source=args.data)
    machine = about_machine({mode.wants for mode in modes})
    summary = summarise(settings, modes, measure(settings, modes, quiet=args.json), machine)
    text, pictures = table(settings, modes, summary), {"bench.png": dict(summary)}
    if args.quick or args.no_many_units:
        summary["many_units"] = None
    else:
        many = settings.many_units()
        summary["many_units"] = pictures["many_units.png"] = summarise(
            many, modes, measure(many, modes, quiet=args.json), machine)
        summary["ok"] = summary["ok"] and summary["many_units"]["ok"]
        text += f"\n\n{table(many, modes, summary['many_units'])}"
    write(args.out, text, modes, summary, pictures)
    return Outcome(f"{text}\n\nwritten to {args.out}/", summary, summary["ok"])


def about_machine(packages: set[str]) -> dict:
    """Versions, and how busy the machine was."""
    from ..launch.processes.parent import cores

    versions = {package: importlib.metadata.version(package) for package in sorted(packages)}
    return versions | {"cores": cores(), "load average before": round(os.getloadavg()[0], 2)}


def write(out: Path, text: str, modes: list, summary: dict, pictures: dict[str, dict]) -> None:
    """Each file appears whole or not at all. pictures: file name → the summary that it shows."""
    from ..bench import BASELINE
    from ..bench.report import alt_text, markdown
    from ..course.plots_bench import bench_figure

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as draft:
        made = Path(draft)
        (made / "report.md").write_text(markdown(text, {name: alt_text(modes, of) for name, of in pictures.items()}))
        (made / "bench.json").write_text(json.dumps(summary, indent=1) + "\n")
        for name, of in pictures.items():
            bench_figure(of, BASELINE).savefig(made / name, dpi=110)
        for file in made.iterdir():
            file.replace(out / file.name)
