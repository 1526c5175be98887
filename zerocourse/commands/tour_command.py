"""The main job: the same GPT-2 on real text in real processes, under one process, data parallel, and ZeRO-1, 2 and 3.

Prints what every rank holds and sends, beside the formulas, and whether they agree; writes the table, two pictures and
summary.json to --out. Exit status 1 when a number disagrees.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from ..errors import BadInput
from ..formulas.units import gb
from . import Outcome

HELP = "train one GPT-2 in five ways on real ranks, and check bytes and losses against the formulas"


def configure(parser):
    parser.add_argument("--nproc", "--ranks", dest="ranks", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps in each mode (default 8, at least 3)")
    parser.add_argument("--data", metavar="PATH", help="text: a file or folder (default: Python's standard library)")
    parser.add_argument("--model", default="gpt2-laptop", metavar="NAME", help="a GPT-2 by name (default gpt2-laptop)")
    parser.add_argument("--tokens", type=int, default=64, metavar="T", help="tokens in a sample (default 64)")
    parser.add_argument("--micro-batch", type=int, default=4, metavar="B", help="samples per rank (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("output/tour"), metavar="DIR", help="default output/tour")


def run(args) -> Outcome:
    from ..data.text import load_text  # here, because torch takes two seconds to import
    from ..models.gpt2 import find_config
    from ..launch.ranks import check_nproc
    from ..course.tour import TourSettings, measure
    from ..course.tour_checks import checks, expected

    if args.steps < 3:
        raise BadInput(f"--steps must be at least 3, not {args.steps}: one is watched and not timed")
    settings = TourSettings(replace(find_config(args.model), block_size=args.tokens), args.ranks, args.micro_batch,
                            args.steps, seed=args.seed, source=args.data)
    check_nproc(settings.ranks)  # refuse what cannot be before any process starts
    load_text(settings.source, settings.model.block_size)
    modes = measure(settings)
    verdict = list(checks(settings, modes))
    wanted = {mode: expected(settings, mode) for mode in modes}
    text = table(settings, modes, wanted, verdict)
    summary = {"ok": all(check.ok for check in verdict), "modes": {mode: summarise(ranks) for mode, ranks in modes.items()}}
    write(args.out, text, summary, modes, wanted)
    return Outcome(f"{text}\n\nwritten to {args.out}/", summary, summary["ok"])


def summarise(ranks: list[dict]) -> dict:
    """The counts of one mode, each as a list with one entry per rank, and the mean losses."""
    from ..course.tour_checks import mean_losses

    kinds = ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    columns = {kind: [got[kind] for got in ranks] for kind in (*kinds, "peak_bytes", "sent_bytes", "padding_bytes", "metadata_bytes")}
    return {**columns, "total_bytes": [sum(got[kind] for kind in kinds) for got in ranks],
            "losses": mean_losses(ranks), "step_seconds": max(got["step_seconds"] for got in ranks)}


def table(settings, modes: dict[str, list[dict]], wanted: dict[str, dict], verdict: list) -> str:
    """One line per rank, and below each mode a line with its formulas."""
    columns = ("parameters", "gradients", "optimizer", "total", "peak", "sent")
    head = f"{'':8}{'':9}" + "".join(f"{name:>11}" for name in ("parameters", "gradients", "optimizer", "together", "peak", "sent/step"))
    lines = [f"GPT-2 with {settings.model.params:,} parameters, fp32 AdamW, {settings.ranks} ranks × {settings.micro_batch} samples "
             f"× {settings.model.block_size} tokens; bytes per rank", "", f"{head}{'last loss':>11}{'ms/step':>9}", ""]
    for mode, ranks in modes.items():
        for rank, got in enumerate(ranks):
            got = got | {"total_bytes": sum(got[f"{kind}_bytes"] for kind in columns[:3])}
            lines.append(f"{mode if rank == 0 else '':8}{f'rank {rank}':9}" + "".join(f"{gb(got[f'{name}_bytes']):>11}" for name in columns)
                         + f"{got['losses'][-1]:11.6f}{got['step_seconds'] * 1e3:9.0f}")
        lines.append(f"{'':8}{'formula':9}" + "".join(f"{gb(wanted[mode][f'{name}_bytes']):>11}" for name in columns))
    wrong = [check for check in verdict if not check.ok]
    lines += ["", f"{len(verdict) - len(wrong)} of {len(verdict)} checks hold: bytes to the last one, peaks within 10 %, "
              "losses equal one process's"]
    lines += [f"  WRONG {check.mode}, {check.what}: {check.detail}" for check in wrong]
    return "\n".join(lines)


def write(out: Path, text: str, summary: dict, modes: dict, wanted: dict) -> None:
    """The table, the summary and the pictures; each file appears whole or not at all."""
    from ..course.plots import timeline, tour_figure

    out.mkdir(parents=True, exist_ok=True)
    events = [event for got in modes["zero3"] for event in got["events"]]
    with tempfile.TemporaryDirectory(dir=out) as draft:
        made = Path(draft)
        (made / "table.txt").write_text(text + "\n")
        (made / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        tour_figure(modes, wanted).savefig(made / "tour.png", dpi=110)
        timeline(events, "ZeRO-3, one step,").savefig(made / "timeline.png", dpi=110)
        for file in made.iterdir():
            file.replace(out / file.name)
