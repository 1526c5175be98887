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
the loopback counter divided by the ranks; a peer's sent_bytes is the same. What could not be metered is null. All ranks
compute on the CPU, and heap_peak_bytes are of the host's memory.
"""

import importlib.metadata
import importlib.util
import json
import os
import tempfile
from pathlib import Path

from ..launch.processes.parent import cores
from . import Outcome
from .arguments import MOST_SEED, Checked, check_folder, path, refuse_ignored, seconds, whole

HELP = "measure our stages beside torch's and DeepSpeed's: bytes held, peak, bytes sent, step time as a ratio"
QUICK_HAS = ("--layers", "--width", "--vocab", "--tokens", "--batch", "--threads", "--rounds", "--budget")
MOST_LAYERS = 1000  # the formula for the peak looks at each pair of them


def configure(parser):
    positive = {"action": Checked, "read": whole(1)}
    parser.add_argument("--ranks", **positive, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--layers", action=Checked, read=whole(1, MOST_LAYERS), default=8,
                        help="of the GPT-2 (default 8)")
    parser.add_argument("--width", **positive, default=512, help="of the GPT-2 (default 512)")
    parser.add_argument("--vocab", action=Checked, read=whole(256), default=8192,
                        help="rows of its token embedding (default 8192)")
    parser.add_argument("--tokens", **positive, default=128, metavar="T", help="tokens in a sample (default 128)")
    parser.add_argument("--batch", **positive, default=8, metavar="B", help="samples per step, of all ranks (default 8)")
    parser.add_argument("--threads", action=Checked, read=whole(1, cores()), default=1,
                        help="threads a rank computes with (default 1)")
    parser.add_argument("--rounds", **positive, default=7,
                        help="timed steps of each mode (default 7; judged from 5 on)")
    parser.add_argument("--modes", metavar="NAMES", help="such as zero3,fsdp2 (default: all that are installed)")
    parser.add_argument("--budget", action=Checked, read=seconds, metavar="SECONDS",
                        help="begin no further round after so long")
    parser.add_argument("--data", action=Checked, read=path, metavar="PATH",
                        help="text: a file or folder (default: Python's standard library)")
    parser.add_argument("--seed", action=Checked, read=whole(0, MOST_SEED), default=0)
    parser.add_argument("--no-many-units", action="store_true", help="leave out the model of 96 small units")
    parser.add_argument("--quick", action="store_true", help="a very small model and two rounds: does it run at all?")
    parser.add_argument("--out", action=Checked, read=path, default=Path("output/bench"), metavar="DIR",
                        help="default output/bench")


def run(args) -> Outcome:
    if args.quick:
        refuse_ignored(args.given, QUICK_HAS, "with --quick, which has a small model and rounds of its own")
    check_folder(args.out, "--out")
    from ..bench import BenchSettings, find_modes, measure
    from ..bench.report import summarise, table

    modes = find_modes(args.modes, lambda package: importlib.util.find_spec(package) is not None)
    source = None if args.data is None else str(args.data)
    if not args.quick:
        settings = BenchSettings(args.layers, args.width, args.vocab, args.tokens, args.batch, args.ranks, args.threads,
                                 args.rounds, budget=args.budget, seed=args.seed, source=source)
    else:
        settings = BenchSettings(2, 64, 256, 32, 2 * args.ranks, args.ranks, rounds=2, tuning_rounds=0, fresh=False,
                                 seed=args.seed, source=source)
    many = None if args.quick or args.no_many_units else settings.many_units()
    check([settings] if many is None else [settings, many], modes)
    machine = about_machine({mode.wants for mode in modes})
    summary = summarise(settings, modes, measure(settings, modes, quiet=args.json), machine)
    text, pictures = table(settings, modes, summary), {"bench.png": dict(summary)}
    if many is None:
        summary["many_units"] = None
    else:
        summary["many_units"] = pictures["many_units.png"] = summarise(
            many, modes, measure(many, modes, quiet=args.json), machine)
        summary["ok"] = summary["ok"] and summary["many_units"]["ok"]
        text += f"\n\n{table(many, modes, summary['many_units'])}"
    write(args.out, text, modes, summary, pictures)
    return Outcome(f"{text}\n\nwritten to {args.out}/", summary, summary["ok"])


def check(each: list, modes: list) -> None:
    """Raise BadInput for a bench, of these settings one after the other, that could not be; starts no process."""
    from ..bench.runner import ENOUGH_TOKENS, LIMIT_SECONDS
    from ..data.sampler import ShardSampler
    from ..data.text import read_tokens, split
    from .estimates import Estimate, check_memory, check_ranks, check_time, say

    check_ranks(each[0].ranks, "--ranks")
    tokens = read_tokens(each[0].source)[:ENOUGH_TOKENS]
    estimates = []
    for settings in each:
        train, _ = split(tokens, settings.tokens, settings.source or "the standard library")
        ShardSampler(len(train), 0, settings.ranks, settings.micro_batch)
        train.check_vocab(settings.vocab)
        step, steps = estimated_step(settings), steps_in_all(settings, modes)
        estimates.append(what := Estimate(estimated_bytes(settings, modes), settings.ranks, steps * step))
        check_memory(what, "lower --layers, --width, --vocab, --tokens, --batch or --ranks")
        check_time(settings.steps * step, LIMIT_SECONDS, "lower --layers, --width, --tokens or --batch")
    largest = max(what.rank_bytes for what in estimates)
    say("bench", Estimate(largest, settings.ranks, sum(what.seconds for what in estimates)))


def estimated_step(settings) -> float:
    """Seconds of a step of any mode, by formula."""
    from ..formulas.transformer import gpt2_step_flops
    from .estimates import step_seconds

    flops = gpt2_step_flops(settings.params, settings.layers, settings.width, settings.micro_batch, settings.tokens)
    return step_seconds(flops, settings.params, settings.ranks, settings.threads)


def steps_in_all(settings, modes: list) -> int:
    """Steps that the bench takes, of all modes: each has two steps before the first that counts, and a lap is two."""
    tuned = sum(len(mode.buckets) for mode in modes) * (2 + 2 * settings.tuning_rounds) if settings.tuning_rounds else 0
    return tuned + len(modes) * (2 + settings.steps) + (len(modes) + 2) * (2 + 2 * settings.rounds)


def estimated_bytes(settings, modes: list) -> int:
    """What a rank's processes hold at once, at the least: a mode, the baseline twice and the one that is alone race
    together, and one of them, here a baseline, is in its step."""
    from ..bench.modes import shape
    from ..bench.runner import PROCESS_BYTES
    from ..bench.settings import BASELINE, MODES
    from ..formulas.peak import gpt2_peak_bytes
    from ..formulas.states import FP32, model_states

    def held(mode) -> int:
        states = model_states(settings.params, mode.stage, settings.ranks, FP32)
        return states.parameters_bytes + states.optimizer_bytes + (0 if mode.stage else states.gradients_bytes)

    baseline, others = MODES[BASELINE], [held(mode) for mode in modes if mode.name != BASELINE]
    alone = model_states(settings.params, 1, settings.ranks, FP32)
    in_step = gpt2_peak_bytes(shape(settings), 0, settings.ranks, settings.micro_batch, settings.tokens, FP32)
    return (held(baseline) + in_step + alone.parameters_bytes + alone.optimizer_bytes + max(others, default=0)
            + (3 + bool(others)) * PROCESS_BYTES)


def about_machine(packages: set[str]) -> dict:
    """Versions, and how busy the machine was."""
    versions = {package: importlib.metadata.version(package) for package in sorted(packages)}
    return versions | {"cores": cores(), "load average before": round(os.getloadavg()[0], 2)}


def write(out: Path, text: str, modes: list, summary: dict, pictures: dict[str, dict]) -> None:
    """Each file appears whole or not at all. pictures: file name → the summary that it shows."""
    from ..bench import BASELINE
    from ..bench.report import alt_text, markdown
    from ..course.show.plots_bench import bench_figure

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as draft:
        made = Path(draft)
        (made / "report.md").write_text(markdown(text, {name: alt_text(modes, of) for name, of in pictures.items()}))
        (made / "bench.json").write_text(json.dumps(summary, indent=1) + "\n")
        for name, of in pictures.items():
            bench_figure(of, BASELINE).savefig(made / name, dpi=110)
        for file in made.iterdir():
            file.replace(out / file.name)
