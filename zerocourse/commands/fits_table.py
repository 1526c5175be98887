"""What fits where: the table of `zerocourse memory --device 24GB --host 64GB --disk 1TB`."""

from dataclasses import asdict

from ..formulas.states import CONVENTIONS
from ..formulas.units import both, gb
from ..formulas.what_fits import ARRANGEMENTS, DEVICE, PLACES, Arrangement, Needs, cheapest, largest_that_fits
from . import Outcome


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
    wide = 3 + max(map(len, verdicts))
    lines = [f"{name}{found['params']:,} parameters on {ranks} rank{'s' * (ranks > 1)}; each rank may use: {budgets}", "",
             f"{'':34}{'device':>9}{'host':>9}{'disk':>9}{'link':>10}{'disk I/O':>10}{'sent':>9}   {'fits?':<{wide}}largest"]
    for row, verdict in zip(found["arrangements"], verdicts, strict=True):
        held = "".join(f"{gb(row[f'{place}_bytes']) if row[f'{place}_bytes'] else '-':>9}" for place in PLACES)
        moved = "".join(f"{gb(row[key]) if row[key] else '-':>{width}}" for key, width in
                        (("link_bytes", 10), ("io_bytes", 10), ("sent_bytes", 9)))
        mark = ">" if row["name"] == found["cheapest"] else " "
        lines.append(f"{mark} {row['name']:32}{held}{moved}   {verdict:<{wide}}{row['largest_params'] / 1e9:.3g}B")
    best = next((row for row in found["arrangements"] if row["name"] == found["cheapest"]), None)
    if best is None:
        lines += ["", "Nothing fits: give it more ranks, or more memory."]
    else:
        moves = f"moves {gb(best['link_bytes'] + best['io_bytes'])} over link and disk" if best["optimizer"] != DEVICE \
            else "moves nothing over link or disk"
        lines += ["", f"{best['name']} fits and moves least: a step {moves}, and sends {gb(best['sent_bytes'])}."]
    device = "The device's bytes are a step's peak" if args.model else "The device's bytes are model states; activations, buckets and what is gathered"
    staging = "with four staging buffers on the host" if args.model else "and staging buffers come on top"
    return "\n".join(lines + [f"{device}, {staging}; \"largest\" counts model states alone. What single operations take for a moment "
                              "is not counted."])
