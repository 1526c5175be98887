"""The main job: the same GPT-2 on real text in real processes, under one process, data parallel, and ZeRO-1, 2 and 3.

Prints what every rank holds and sends, beside the formulas, and whether they agree; writes the table, two pictures and
summary.json to --out. Exit status 1 when a number disagrees.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from ..errors import BadInput
from ..formulas.gpt2_config import find_config
from ..formulas.units import gb
from . import Outcome
from .arguments import MOST_SEED, Checked, add_device, check_folder, path, set_device, whole
from .terminal import table as aligned

HELP = "train one GPT-2 in five ways on real ranks, and check bytes and losses against the formulas"
WIDE = 120  # columns of the table in a file


def configure(parser):
    parser.add_argument("--nproc", "--ranks", dest="ranks", action=Checked, read=whole(1), default=2, metavar="N",
                        help="processes (default 2)")
    parser.add_argument("--steps", action=Checked, read=whole(3), default=8,
                        help="optimizer steps in each mode (default 8, at least 3: one is watched and not timed)")
    parser.add_argument("--data", action=Checked, read=path, metavar="PATH",
                        help="text: a file or folder (default: Python's standard library)")
    parser.add_argument("--model", default="gpt2-laptop", metavar="NAME", help="a GPT-2 by name (default gpt2-laptop)")
    parser.add_argument("--tokens", action=Checked, read=whole(1), default=64, metavar="T",
                        help="tokens in a sample (default 64)")
    parser.add_argument("--micro-batch", action=Checked, read=whole(1), default=4, metavar="B",
                        help="samples per rank (default 4)")
    parser.add_argument("--seed", action=Checked, read=whole(0, MOST_SEED), default=0)
    add_device(parser, "cpu, where the course's numbers were made")
    parser.add_argument("--out", action=Checked, read=path, default=Path("output/tour"), metavar="DIR",
                        help="default output/tour")
    parser.add_argument("--trace", action="store_true",
                        help="also write a trace of one step of each mode with ranks, for https://ui.perfetto.dev")
    parser.add_argument("--film", action=Checked, read=path, metavar="FILE",
                        help="also write one step of ZeRO-3 as a page that plays: bytes, collectives and lines of code, event by event")


def run(args) -> Outcome:
    check_folder(args.out, "--out")
    if args.film:
        check_folder(args.film.parent, "--film")
    set_device(args, "cpu")
    from ..course.tour.tour import TourSettings, measure  # here, because torch takes two seconds to import
    from ..course.tour.tour_checks import checks, expected

    settings = TourSettings(replace(find_config(args.model), block_size=args.tokens), args.ranks, args.micro_batch,
                            args.steps, seed=args.seed, source=args.data)
    check(settings)
    modes = measure(settings)
    verdict = list(checks(settings, modes))
    wanted = {mode: expected(settings, mode) for mode in modes}
    text = table(settings, modes, wanted, verdict, WIDE)
    summary = {"ok": all(check.ok for check in verdict),
               "modes": {mode: summarise(ranks) for mode, ranks in modes.items()}}
    write(args.out, text, summary, modes, wanted, args.trace)
    said = f"{table(settings, modes, wanted, verdict)}\n\nwritten to {args.out}/"
    if args.film:
        from ..course.tour.tour_film import tour_film

        args.film.parent.mkdir(parents=True, exist_ok=True)
        args.film.write_text(tour_film([event for got in modes["zero3"] for event in got["events"]], formulas_of(wanted)).page())
        said += f", the film to {args.film}"
    return Outcome(said, summary, summary["ok"])


def formulas_of(wanted: dict[str, dict]) -> dict[str, int]:
    """Of ZeRO-3, by name, in bytes per rank."""
    return {name: wanted["zero3"][f"{key}_bytes"] for name, key in (("model states", "total"), ("peak", "peak"))}


def check(settings) -> None:
    """Raise BadInput for a tour that could not be, before any process starts."""
    from ..course.tour.tour import LIMIT_SECONDS
    from ..data.sampler import ShardSampler
    from ..data.text import load_text
    from .estimates import check_memory, check_ranks, check_time, say

    check_ranks(settings.ranks, "--nproc")
    train, _ = load_text(settings.source, settings.model.block_size)
    steps = len(ShardSampler(len(train), 0, settings.ranks, settings.micro_batch))
    if steps < settings.steps:
        raise BadInput(f"--steps is {settings.steps}: {settings.source or 'the standard library'} has text for {steps} "
                       f"steps, of {settings.ranks} x {settings.micro_batch} samples of {settings.model.block_size} "
                       "tokens each")
    train.check_vocab(settings.model.vocab_size)
    alone, ranks = estimates(settings)
    smaller = "lower --tokens, --micro-batch or --nproc, or name a smaller --model"
    check_memory(alone, smaller)
    check_memory(ranks, smaller)
    check_time(max(alone.seconds, ranks.seconds), LIMIT_SECONDS, f"lower --steps, {smaller.partition(' ')[2]}")
    say("tour", replace(ranks, seconds=alone.seconds + ranks.seconds))


def estimates(settings) -> tuple:
    """What the one process takes, and what the ranks do."""
    from ..bench.runner import PROCESS_BYTES
    from ..course.tour.tour import MODES
    from ..course.tour.tour_checks import expected
    from ..formulas.transformer import gpt2_step_flops
    from .estimates import START_SECONDS, Estimate, step_seconds

    model = settings.model
    flops = gpt2_step_flops(model.params, model.n_layer, model.n_embd, settings.micro_batch, model.block_size)
    single, *staged = (expected(settings, mode)["peak_bytes"] + PROCESS_BYTES for mode in MODES)

    def seconds(modes: int, flops: int, ranks: int) -> float:
        return START_SECONDS + modes * settings.steps * step_seconds(flops, model.params, ranks)

    return (Estimate(single, 1, seconds(1, settings.ranks * flops, 1)),
            Estimate(max(staged), settings.ranks, seconds(len(staged), flops, settings.ranks)))


def summarise(ranks: list[dict]) -> dict:
    """The counts of one mode, each as a list with one entry per rank, and the mean losses."""
    from ..course.tour.tour_checks import mean_losses

    kinds = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    counts = (*kinds, "peak_bytes", "device_peak_bytes", "sent_bytes", "padding_bytes", "metadata_bytes")
    columns = {name: [got[name] for got in ranks] for name in counts if name in ranks[0]}  # device_peak: on GPUs alone
    return {**columns, "total_bytes": [sum(got[kind] for kind in kinds) for got in ranks],
            "losses": mean_losses(ranks), "step_seconds": max(got["step_seconds"] for got in ranks)}


def table(settings, modes: dict[str, list[dict]], wanted: dict[str, dict], verdict: list, wide: int | None = None) -> str:
    """One line per rank, and below each mode a line with its formulas. wide: columns of the page; None: the terminal's."""
    columns = ("parameters", "gradients", "optimizer", "total", "peak", "sent")
    lines = [(f"GPT-2 with {settings.model.params:,} parameters, fp32 AdamW, {settings.ranks} ranks × {settings.micro_batch} samples "
              f"× {settings.model.block_size} tokens{', on GPUs' * (modes['single'][0]['device'] == 'cuda')}; bytes per rank"), ""]
    rows = [["", "parameters", "gradients", "optimizer", "together", "peak", "sent/step", "last loss", "ms/step"]]
    for mode, ranks in modes.items():
        for rank, got in enumerate(ranks):
            got = got | {"total_bytes": sum(got[f"{kind}_bytes"] for kind in columns[:3])}
            rows.append([f"{mode if rank == 0 else '':8}rank {rank}", *(gb(got[f"{name}_bytes"]) for name in columns),
                         f"{got['losses'][-1]:.6f}", f"{got['step_seconds'] * 1e3:.0f}"])
        rows.append([f"{'':8}formula", *(gb(wanted[mode][f"{name}_bytes"]) for name in columns), "", ""])
    lines += aligned(rows, "<" + ">" * 8, wide)
    on_gpu = {mode: max(got["device_peak_bytes"] for got in ranks) for mode, ranks in modes.items() if "device_peak_bytes" in ranks[0]}
    if on_gpu:
        lines += ["", "in use at most by the GPU's allocator: " + ", ".join(f"{mode} {gb(peak)}" for mode, peak in on_gpu.items())]
    wrong = [check for check in verdict if not check.ok]
    lines += ["", (f"{len(verdict) - len(wrong)} of {len(verdict)} checks hold: bytes to the last one, peaks within 10 %, "
               "losses equal one process's")]
    lines += [f"  WRONG {check.mode}, {check.what}: {check.detail}" for check in wrong]
    return "\n".join(lines)


def write(out: Path, text: str, summary: dict, modes: dict, wanted: dict, traces: bool = False) -> None:
    """The table, the summary, the pictures and, if wanted, the traces; each file appears whole or not at all."""
    from ..course.show.plots import timeline, tour_figure
    from ..measure import perfetto
    from ..measure.drawn.png import png_of_svg

    out.mkdir(parents=True, exist_ok=True)
    events = {mode: [event for got in ranks for event in got["events"]] for mode, ranks in modes.items()}
    with tempfile.TemporaryDirectory(dir=out) as draft:
        made = Path(draft)
        (made / "table.txt").write_text(text + "\n")
        (made / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        tour_figure(modes, wanted).savefig(made / "tour.png", dpi=110)
        drawn = timeline(events["zero3"], "ZeRO-3, one step,", formulas_of(wanted))
        (made / "timeline.png").write_bytes(png_of_svg(drawn.svg, drawn.text))
        for mode, of_mode in events.items():
            if traces and of_mode:  # one process alone records none
                perfetto.write(of_mode, made / f"trace_{mode}.json")
        for file in made.iterdir():
            file.replace(out / file.name)
