"""What fits where: the table of `zerocourse memory --device 24GB --host 64GB --disk 1TB`."""

from dataclasses import asdict

from ...formulas.states import CONVENTIONS
from ...formulas.units import both, gb
from ...formulas.what_fits import ARRANGEMENTS, DEVICE, PLACES, Arrangement, Needs, cheapest, largest_that_fits
from .. import Outcome
from ..terminal import table


def what_fits(args, needed: dict[Arrangement, Needs], params: int) -> Outcome:
    """needed: by arrangement, what a rank needs for the model."""
    convention = CONVENTIONS[args.convention]
    budgets = {place: getattr(args, place) or 0 for place in PLACES}
    best = cheapest(needed, budgets)
    largest = {where: largest_that_fits(where, args.ranks, budgets, convention, args.accumulation) for where in ARRANGEMENTS}
    rows = [{"name": str(where), **asdict(where), **asdict(each), "fits": not each.missing(budgets),
             "missing_bytes": each.missing(budgets), "largest_params": largest[where]} for where, each in needed.items()]
    found = {"params": params, "ranks": args.ranks, **{f"{place}_budget_bytes": nbytes for place, nbytes in budgets.items()},
             "arrangements": rows, "cheapest": None if best is None else str(best)}
    return Outcome(text(args, found), found)


def text(args, found: dict) -> str:
    ranks, name = found["ranks"], f"{args.model}: " if args.model else ""
    budgets = ", ".join(f"{place} {both(found[f'{place}_budget_bytes'])}" for place in PLACES)
    verdicts = ["fits" if row["fits"] else "; ".join(f"{place} {gb(nbytes)} short" for place, nbytes in row["missing_bytes"].items())
                for row in found["arrangements"]]
    lines = [f"{name}{found['params']:,} parameters on {ranks} rank{'s' * (ranks > 1)}; each rank may use: {budgets}", ""]
    rows = [["", "device", "host", "disk", "link", "disk I/O", "sent", "fits?", "largest"]]
    for row, verdict in zip(found["arrangements"], verdicts, strict=True):
        moved = [*(f"{place}_bytes" for place in PLACES), "link_bytes", "io_bytes", "sent_bytes"]
        rows.append([f"{'>' if row['name'] == found['cheapest'] else ' '} {row['name']}",
                     *(gb(row[key]) if row[key] else "-" for key in moved), verdict, f"{row['largest_params'] / 1e9:.3g}B"])
    lines += table(rows, "<>>>>>><>")
    best = next((row for row in found["arrangements"] if row["name"] == found["cheapest"]), None)
    if best is None:
        lines += ["", "Nothing fits: give it more ranks, or more memory."]
    else:
        moves = f"moves {gb(best['link_bytes'] + best['io_bytes'])} over link and disk" if best["optimizer"] != DEVICE \
            else "moves nothing over link or disk"
        lines += ["", f"{best['name']} fits and moves least: a step {moves}, and sends {gb(best['sent_bytes'])}."]
    device = "The device's bytes are " + ("a step's peak" if args.model else "model states; activations, buckets and what is gathered")
    staging = "with four staging buffers on the host" if args.model else "and staging buffers come on top"
    return "\n".join(lines + [(f"{device}, {staging}; \"largest\" counts model states alone. What single operations take for a moment "
                               "is not counted.")])
