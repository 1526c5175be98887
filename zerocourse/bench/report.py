"""The bench in words and as JSON. Pure functions of what `runner.measure` returned."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from ..course.tour.tour_checks import KINDS, mean_losses
from ..formulas.units import gib
from .judge import Profile, Ratio, checks, noise, profiles, ratio
from .settings import AGAIN, ALONE, BASELINE, BenchMode, BenchSettings

COUNTS = (*KINDS, "peak_bytes", "heap_peak_bytes", "wire_bytes", "sent_bytes", "padding_bytes", "metadata_bytes")


def summarise(settings: BenchSettings, modes: Sequence[BenchMode], measured: dict, machine: dict) -> dict:
    """The object that `--json` prints; see the bench's help for its fields."""
    verdict = list(checks(settings, list(modes), measured["watched"]))
    spent = profiles(measured["races"], settings.ranks)
    return {"ok": all(check.ok for check in verdict),
            "modes": {mode.name: mode_summary(mode, measured, spent.get(mode.name)) for mode in modes},
            "wrong": [f"{check.mode}, {check.what}: {check.detail}" for check in verdict if not check.ok],
            "checks": len(verdict), "noisy": noise(measured["races"]),
            "control": as_dict(ratio(measured["races"], AGAIN, BASELINE)),
            "profile": {name: asdict(profile) for name, profile in spent.items()},
            "alone": {mode.name: as_dict(ratio(measured["races"], ALONE, mode.name)) for mode in modes},
            "hooks_microseconds": measured["hooks"],
            "meters": {"heap": measured["heap"], "wire": measured["private"]}, "machine": machine}


def mode_summary(mode: BenchMode, measured: dict, spent: Profile | None) -> dict:
    """The summary of one mode: counts with one entry per rank, mean losses, what a step costs, and time ratios."""
    ranks, races = measured["watched"][mode.name], measured["races"]
    counts = {count: [got[count] for got in ranks] for count in COUNTS}
    counts["total_bytes"] = [sum(got[kind] for kind in KINDS) for got in ranks]
    if not mode.ours:
        counts["sent_bytes"] = counts["wire_bytes"]  # a peer does not count: the interface does
    others = (BASELINE, *mode.matches)
    return {**counts, "losses": mean_losses(ranks),
            **{part: spent and getattr(spent, part) for part in ("step_seconds", "processor_seconds", "page_faults")},
            "ratios": {other: as_dict(ratio(races, mode.name, other)) for other in others
                       if other != mode.name and ratio(races, mode.name, other)},
            "bucket": measured["buckets"][mode.name], "bucket_unit": mode.unit or None,
            "tried_seconds": {str(size): seconds for size, seconds in measured["tuning"].get(mode.name, {}).items()}}


def as_dict(times: Ratio | None) -> dict | None:
    return times and asdict(times)


def table(settings: BenchSettings, modes: Sequence[BenchMode], summary: dict) -> str:
    """The table for people: one line per mode (of the rank that holds most), and notes on what it means."""
    head = ("mode", "bucket", "params", "grads", "optim", "peak", "heap peak", "wire", "ms/step", "CPU ms",
            "faults", "/ DDP", "/ torch peer", "/ DeepSpeed")
    floor = summary["profile"].get(ALONE)
    rows = [head, *(row(settings, mode, summary["modes"][mode.name]) for mode in modes)]
    rows += [("compute alone", *("-" * 7), *step_cells(floor), *("-" * 3))] if floor else []
    return "\n".join([about(settings, summary["machine"]), "", *aligned(rows, words=2), "",
                      *notes(settings, modes, summary)])


def aligned(rows: list[tuple[str, ...]], words: int) -> list[str]:
    """Lines in which the first `words` columns are aligned to the left, and the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) if column < words else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(line, widths, strict=True))) for line in rows]


def row(settings: BenchSettings, mode: BenchMode, got: dict) -> tuple[str, ...]:
    def most(count: str) -> str:
        return "-" if None in got[count] else gib(max(got[count]))

    def times(*others: str) -> str:
        time = next((got["ratios"][other] for other in others if other in got["ratios"]), None)
        return f"{time['median']:.2f} ±{time['spread'] / 2:.2f} ({time['processor']:.2f})" if time else "-"

    wire = "-" if None in got["wire_bytes"] else f"{max(got['wire_bytes']) / (4 * settings.params):.3f}Ψ"
    deepspeed = [name for name in mode.matches if name.startswith("deepspeed")]
    return (mode.name, f"{got['bucket']:,} {mode.unit}" if mode.buckets else "a unit", *(most(kind) for kind in KINDS),
            most("peak_bytes"), most("heap_peak_bytes"), wire, *step_cells(got), times(BASELINE),
            times(*(name for name in mode.matches if name not in deepspeed)), times(*deepspeed))


def step_cells(spent: dict) -> tuple[str, str, str]:
    """Milliseconds on the clock, milliseconds of processor time and page faults of a step, of one rank."""
    if spent["step_seconds"] is None:
        return "-", "-", "-"
    clock, processor = (f"{1e3 * spent[part]:.0f}" for part in ("step_seconds", "processor_seconds"))
    return clock, processor, f"{spent['page_faults']:,.0f}"


def about(settings: BenchSettings, machine: dict) -> str:
    return (f"GPT-2 of {settings.layers} × {settings.width}, vocabulary {settings.vocab}, "
            f"{settings.params:,} parameters (Ψ); seed {settings.seed}; {settings.ranks} ranks × "
            f"{settings.micro_batch} samples × {settings.tokens} tokens\n"
            f"fp32, AdamW(fused=True, lr={settings.lr}) in every mode, gloo, {settings.threads} thread(s) a rank, "
            + ", ".join(f"{name} {value}" for name, value in machine.items()))


def notes(settings: BenchSettings, modes: Sequence[BenchMode], summary: dict) -> list[str]:
    """What the numbers mean, whether they hold, and whether the times can be judged."""
    lines = ["peak: tensors that Python sees. heap peak: all blocks of 16 KiB and more, C++'s too, above what the",
             "process held before the model was built. wire: loopback's counter, a rank's share. A step's time, of",
             "one rank: on the clock, and of the processor, user and system, in all threads; with page faults. Ratios",
             "of times: medians over rounds, ± half the distance of the quartiles; in brackets that of processor time."]
    if not summary["meters"]["heap"]:
        lines.append("No heap peak: the meter needs a C compiler and glibc.")
    if not summary["meters"]["wire"]:
        lines.append("No bytes on the wire: a network namespace of one's own is not permitted here.")
    for mode in modes:
        tried = summary["modes"][mode.name]["tried_seconds"].items()
        if tried:
            each = ", ".join(f"{int(size):,} {mode.unit} {seconds * 1e3:.0f} ms" for size, seconds in tried)
            lines.append(f"bucket sizes of {mode.name}: {each}")
    floors = ", ".join(f"{floor['median']:.2f} of {name}'s" for name, floor in summary["alone"].items() if floor)
    lines += textwrap.wrap(f"compute alone, a step that talks to nobody, takes this of their time: {floors}", 110)
    lines += where_time_goes(summary["profile"])
    for name, cost in summary["hooks_microseconds"].items():
        lines.append(f"hooks of {name}: {cost['a_step']:.0f} µs a step, {cost['a_unit']:.0f} a unit, "
                     f"{cost['a_parameter']:.1f} a parameter; {cost['example'] / 1e3:.1f} ms for 12 blocks of 12")
    lines += [f"TOO NOISY: {reason}." for reason in summary["noisy"]]
    if not summary["noisy"] and summary["control"]:
        control = summary["control"]
        lines.append(f"{BASELINE} against itself: {control['median']:.2f}, quartiles {control['spread']:.2f} apart "
                     f"over {control['rounds']} rounds: times can be judged.")
    lines.append(f"{summary['checks'] - len(summary['wrong'])} of {summary['checks']} checks of losses and bytes hold.")
    return lines + [f"  WRONG {wrong}" for wrong in summary["wrong"]]


def where_time_goes(profile: dict[str, dict]) -> list[str]:
    """Which threads use the processor: one line per mode, in milliseconds of one rank."""
    head = ("where a step goes, ms a rank:", "processor", "main thread", "communication threads")
    parts = ("processor_seconds", "main_thread_seconds", "communication_thread_seconds")
    rows = [(f"  {name}", *(f"{1e3 * of[part]:.0f}" for part in parts)) for name, of in profile.items()]
    about_it = ["main thread: model, hooks and optimizer; communication threads: gloo's, which send, receive and add."]
    return [*aligned([head, *rows], words=1), *about_it] if rows else []


def alt_text(modes: Sequence[BenchMode], summary: dict) -> str:
    """What the picture shows, for those who cannot see it."""
    parts = []
    for mode in modes:
        got = summary["modes"][mode.name]
        ratio_to_base = got["ratios"].get(BASELINE)
        time = "1.00" if mode.name == BASELINE else f"{ratio_to_base['median']:.2f}" if ratio_to_base else "unknown"
        peak = got["heap_peak_bytes"] if None not in got["heap_peak_bytes"] else got["peak_bytes"]
        parts.append(f"{mode.name} {time} and {gib(max(peak))}")
    return f"Two bar charts: step time as a ratio to {BASELINE}, and peak memory of a rank. " + "; ".join(parts) + "."


def markdown(text: str, pictures: dict[str, str]) -> str:
    """pictures: file name → what it shows."""
    return f"# Bench\n\n```\n{text}\n```\n" + "".join(f"\n![{alt}]({name})\n" for name, alt in pictures.items())


