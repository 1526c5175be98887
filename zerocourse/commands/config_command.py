"""Explains a ds_config.json line by line: what each key does, and what that costs in bytes held and sent.

  zerocourse config ds_config.json --model gpt2 --nproc 2
  zerocourse config --schema > ds_config.schema.json

Every problem of the file is named, one a line, with exit status 2. --schema prints the JSON schema by which an editor
completes keys. Bytes are by formula, for a GPT-2 in the given size on sequences of its full length.
--json: {"config": with all defaults, "keys": [{"line", "path", "group", "does", "effect"}], and the counts of a rank}.
"""

import json
import warnings

from ..errors import BadInput
from ..formulas.gpt2_config import find_config
from ..formulas.units import both
from . import Outcome
from .arguments import MOST_RANKS, Checked, path, refuse_ignored, whole

HELP = "explain a ds_config.json line by line, or say what is wrong with it"


def configure(parser):
    parser.add_argument("file", nargs="?", action=Checked, read=path, metavar="FILE", help="a ds_config.json")
    parser.add_argument("--model", default="gpt2", metavar="NAME", help="a GPT-2 by name (default gpt2)")
    parser.add_argument("--nproc", action=Checked, read=whole(1, MOST_RANKS), default=2, metavar="N",
                        help="ranks (default 2)")
    parser.add_argument("--auto", action="append", default=[], metavar="KEY=VALUE",
                        help="what an \"auto\" of the file stands for, such as optimizer.params.lr=1e-4; once for each")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema, and read no file")


def run(args) -> Outcome:
    if args.schema:
        refuse_ignored(args.given, ("--model", "--nproc", "--auto"), "with --schema, which reads no file")
        from ..engine.config.json_schema import json_schema
        return Outcome(json.dumps(json_schema(), indent=2, ensure_ascii=False), json_schema(), verbatim=True)
    if args.file is None:
        raise BadInput("FILE is missing: name a ds_config.json, or ask for its --schema")
    from ..engine.config import Config
    from ..engine.config.explain import counts, effects
    from ..engine.config.json_file import keys_by_line, read_text
    from ..engine.config.keys import KEYS

    model, known = find_config(args.model), dict(map(supposed, args.auto))
    with warnings.catch_warnings():  # what changes nothing stands in the table
        warnings.simplefilter("ignore")
        config = Config.load(args.file, args.nproc, known)
    text, does = read_text(args.file), effects(config, model, args.nproc)
    keys = [{"line": line, "path": path, "group": KEYS[path].group.value, "does": KEYS[path].does,
             "effect": does.get(path)}
            for path, line in keys_by_line(text) if path in KEYS]
    of_rank = counts(config, model, args.nproc)
    return Outcome(explained(args, text, keys, of_rank), {"config": config.as_dict(), "keys": keys, **of_rank})


def supposed(text: str) -> tuple[str, object]:
    """KEY=VALUE, of which the value is JSON. Raises BadInput."""
    key, _equals, value = text.partition("=")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        raise BadInput(f"--auto is {text!r}: it must be KEY=VALUE with a JSON value, such as "
                       "optimizer.params.lr=1e-4") from None


def explained(args, text: str, keys: list[dict], of_rank: dict) -> str:
    """The file's lines, with what their keys do below each."""
    lines = [f"{args.file} for {args.model} ({of_rank['params']:,} parameters) on {args.nproc} ranks", ""]
    for number, line in enumerate(text.splitlines(), 1):
        lines.append(f"{number:4}  {line.rstrip()}")
        for key in keys:
            if key["line"] == number:
                group = "" if key["group"] == "works" else f"{key['group']}: "
                lines.append(f"{'':10}> {group}{key['does']}")
                if key["effect"]:
                    lines.append(f"{'':12}here: {key['effect']}")
    peak = f", about {both(of_rank['peak_bytes'])} at the peak of a step" if of_rank["peak_bytes"] is not None else ""
    return "\n".join(lines + ["", (f"In all a rank holds {both(of_rank['total_bytes'])} of model states{peak}, "
                                   f"and sends {both(of_rank['sent_bytes'])} per step.")])
