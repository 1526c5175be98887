"""What a plan predicted beside what a training measured, ready to be posted.

  zerocourse plan --model gpt2-xl --cluster 8xA100 --write plan
  zerocourse train --config plan/ds_config.json --model gpt2-xl --data book.txt
  zerocourse receipt plan
  zerocourse receipt plan --measured output/mine

The first folder has the `prediction.json` of `plan --write`, the second (--measured) the `summary.json` of `train`, or of a script of
your own with `with engine.measured("output/mine", tokens=1024):` around its training loop. Both must be of one
model on as many ranks, with the same stage, batch and tokens. Bytes are of the rank that has most; seconds are predicted for the
cluster that was planned for, and say nothing of another machine.
"""

import json
import platform
from pathlib import Path

from ...errors import BadInput
from ...formulas.units import gb
from .. import Outcome
from ..arguments import Checked, path
from ..terminal import table

HELP = "what `plan` predicted beside what a training measured"
PREDICTION, SUMMARY = "prediction.json", "summary.json"
SAME = ("params", "stage", "ranks", "train_batch_size", "tokens_per_sample")
WORDS = {"parameters_bytes": "parameters", "gradients_bytes": "gradients", "optimizer_bytes": "optimizer", "total_bytes": "model states",
         "peak_bytes": "peak", "sent_bytes": "sent a step", "step_seconds": "step", "tokens_per_second": "tokens a second"}


def configure(parser):
    parser.add_argument("plan", action=Checked, read=path, metavar="DIR", help="the folder that `plan --write` made")
    parser.add_argument("--measured", action=Checked, read=path, default=Path("output/deepspeed_metrics"), metavar="DIR",
                        help="the folder that `train`, or engine.measured, wrote to (default output/deepspeed_metrics)")


def run(args) -> Outcome:
    planned, measured = read(args.plan / PREDICTION, "zerocourse plan --write"), read(args.measured / SUMMARY, "zerocourse train")
    for key in SAME:
        if planned[key] != measured[key]:
            raise BadInput(f"the plan in {args.plan} has {key} = {planned[key]}, and the training in {args.measured} had {measured[key]}: "
                           "lay a training beside the plan that it follows")
    rows = {name: beside(planned["predicted"][name], measured[name]) for name in WORDS}
    facts = {key: planned[key] for key in ("model", "cluster", "way", "source", *SAME)}
    facts |= {"device": measured["device"], "machine": platform.machine(), "system": platform.system(), "python": platform.python_version(),
              "torch": measured["torch"]}
    return Outcome(text(facts, rows), facts | {"rows": rows})


def read(file: Path, by: str) -> dict:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise BadInput(f"{file} is not there: `{by}` writes it") from None
    except ValueError as error:
        raise BadInput(f"{file} is no JSON ({error}): `{by}` writes it") from None


def beside(predicted: float, measured: float | list | None) -> dict:
    """measured: one value, or one for each rank. `ratio` is measured / predicted, None where one of them is 0 or not there."""
    most = max(measured) if isinstance(measured, list) and None not in measured else measured
    known = isinstance(most, int | float)
    return {"predicted": predicted, "measured": most if known else None, "ratio": most / predicted if known and predicted else None}


def text(facts: dict, rows: dict[str, dict]) -> str:
    def shown(name: str, value: float | None) -> str:
        if value is None:
            return "-"
        return gb(int(value)) if name.endswith("_bytes") else f"{value:.3g} s" if name.endswith("seconds") else f"{value:,.0f}"

    lines = [["", "predicted", "measured", "measured / predicted"]]
    lines += [[WORDS[name], shown(name, row["predicted"]), shown(name, row["measured"]), "-" if row["ratio"] is None else f"{row['ratio']:.3f}"]
              for name, row in rows.items()]
    return "\n".join([f"{facts['model']} ({facts['params']:,} parameters): {facts['way']}", "", *table(lines, "<>>>"), "",
                      (f"Predicted ({facts['source']}) for {facts['cluster']}, measured on {facts['device']}, {facts['system']} {facts['machine']}, "
                       f"Python {facts['python']}, torch {facts['torch']}. Seconds of another machine than the one that was planned for "
                       "say nothing.")])
