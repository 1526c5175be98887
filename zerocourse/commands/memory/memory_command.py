"""How many bytes a rank holds and sends at each ZeRO stage, by formula.

  zerocourse memory --params 7e9 --stage 3 --ranks 8
  zerocourse memory --model gpt2-xl --ranks 2 --card 24GiB --micro-batch 4
  zerocourse memory --model Qwen3-8B/config.json --ranks 8 --card 80GiB --seq 4096
  zerocourse memory --device 24GB --host 64GB --disk 1TB --params 7e9 --ranks 1
  zerocourse memory --model Qwen3-8B/config.json --kv --seq 8192 --card 24GiB --bandwidth 300GB
  zerocourse memory --model Mixtral-8x7B/config.json --ranks 64 --experts-over 8
  zerocourse memory --table1

With --kv it is about generation: the keys and values of requests, and what a step reads.

With --device it says what fits where: for each stage, with the optimizer's states and the parameters on the device, on the
host or on the disk, the bytes of each, and which of those that fit moves least in a step.

Of a mixture of experts it says what is held with the experts of a layer on one rank, or over several (--experts-over); a peak is
not estimated for it.
"""

from dataclasses import asdict
from typing import cast

from ...errors import BadInput
from ...formulas.gpt2_config import GPTConfig, find_config
from ...formulas.models.config_json import is_config, read_config
from ...formulas.models.kv_cache import Decoding
from ...formulas.models.llama_peak import llama_peak_bytes
from ...formulas.models.llama_shape import LlamaShape
from ...formulas.models.mixture_shape import MixtureShape, mixture_sent_bytes, mixture_states
from ...formulas.peak import gpt2_peak_bytes
from ...formulas.states import CONVENTIONS, fewest_ranks, largest_params, model_states, paper_table1
from ...formulas.units import both, gb
from ...formulas.volumes import sent_bytes
from ...formulas.what_fits import ARRANGEMENTS, DEVICE, Arrangement, Needs, largest_unit, needs, on_device
from .. import Outcome
from ..arguments import MOST_RANKS, Checked, count, refuse_ignored, size, whole
from ..terminal import table
from .fits_table import what_fits
from .kv_table import kv_table

HELP = "bytes that each rank holds and sends at each stage, by formula"
STAGES = ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")
BAR = 20  # characters for the largest total


def configure(parser):
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--params", action=Checked, read=count, metavar="P", help="number of parameters: 7e9, 7B, 124M")
    what.add_argument("--model", metavar="NAME",
                      help="a GPT-2 by name, gpt2-xl for one, or the path of a Hugging Face config.json: also estimates the peak")
    what.add_argument("--table1", action="store_true", help="the ZeRO paper's Table 1, computed")
    parser.add_argument("--stage", action=Checked, read=whole(0, 3), default=3, help="0 to 3 (default 3); the tables mark it with >")
    positive = {"action": Checked, "read": whole(1, MOST_RANKS)}
    parser.add_argument("--ranks", **positive, default=8, metavar="N", help="world size (default 8)")
    parser.add_argument("--convention", choices=CONVENTIONS, default="16",
                        help="bytes per parameter: Adam in mixed precision (16, 18 or 20), or fp32 training (default 16)")
    parser.add_argument("--accumulation", **positive, default=1, metavar="G", help="micro-batches per step (default 1)")
    parser.add_argument("--card", action=Checked, read=size(), default=24 * 2**30, metavar="SIZE",
                        help="memory of a rank's card, such as 80GiB (default 24GiB)")
    parser.add_argument("--experts-over", **positive, metavar="EP", help="ranks that have different experts of a layer (default 1)")
    where = parser.add_argument_group("what fits where (sizes are for each rank)")
    where.add_argument("--device", action=Checked, read=size(), metavar="SIZE", help="memory of the device, such as 24GB")
    where.add_argument("--host", action=Checked, read=size(), metavar="SIZE", help="host memory for offload (default none)")
    where.add_argument("--disk", action=Checked, read=size(), metavar="SIZE", help="space on the disk (default none)")
    generation = parser.add_argument_group("generation, with --model")
    generation.add_argument("--kv", action="store_true", help="keys and values of requests of --seq tokens, beside the weights on a --card")
    generation.add_argument("--bandwidth", action=Checked, read=size(), metavar="SIZE",
                            help="what the card reads in a second, such as 300GB: also the most tokens a second")
    activations = parser.add_argument_group("activations, with --model")
    activations.add_argument("--micro-batch", **positive, metavar="B", help="samples in a micro-batch (default 1)")
    activations.add_argument("--seq", **positive, metavar="T", help="tokens in a sample (default: the model's most)")
    activations.add_argument("--recompute", choices=("none", "selective", "full"),
                             help="what backward makes again (default selective: attention scores)")


def run(args) -> Outcome:
    if args.table1:
        others = sorted(args.given - {"--table1", "--json"})
        refuse_ignored(args.given, others, "with --table1, which is the paper's table as it is")
        return _table1()
    if args.model is None:
        refuse_ignored(args.given, ("--micro-batch", "--seq", "--recompute", "--kv", "--bandwidth", "--experts-over"),
                       "without --model: activations, keys and values depend on its shape")
    if args.kv:
        refuse_ignored(args.given, sorted(args.given - {"--model", "--kv", "--seq", "--card", "--bandwidth", "--json"}),
                       "with --kv, which is about generation on one card")
        model = cast("GPTConfig | LlamaShape | MixtureShape", _model(args))
        return kv_table(str(args.model), Decoding(model, args.seq or tokens_of(model)), args.card, args.bandwidth)
    refuse_ignored(args.given, ("--bandwidth",), "without --kv: only generation is as fast as weights are read")
    mixture = _mixture(args)
    if args.device is not None:
        if mixture is not None:
            raise BadInput(f"{args.model} is a mixture of experts, of which --device knows nothing: ask without it")
        refuse_ignored(args.given, ("--stage", "--card"), "with --device, which shows all stages on that device")
        needed = {where: _needs(args, where) for where in ARRANGEMENTS}
        return what_fits(args, needed, _params(args))
    refuse_ignored(args.given, ("--host", "--disk"), "without --device, the memory that they extend")
    params, peaks = _params(args), [_peak(args, stage) for stage in range(4)]
    stages = []
    for stage, peak in enumerate(peaks):
        convention, over = CONVENTIONS[args.convention], args.experts_over or 1
        if mixture is not None:
            states = mixture_states(mixture, stage, args.ranks, over, convention)
            tokens = (args.micro_batch or 1) * (args.seq or mixture.tokens)
            sent = mixture_sent_bytes(mixture, stage, args.ranks, over, tokens, args.accumulation, convention)
        else:
            states = model_states(params, stage, args.ranks, convention)
            sent = sent_bytes(params, stage, args.ranks, args.accumulation, convention=convention)
        stages.append({"params": params, "stage": stage, "ranks": args.ranks, **asdict(states),
                       "total_bytes": states.total_bytes, "peak_bytes": peak, "sent_bytes": sent})
    return Outcome(_text(args, stages, mixture), stages[args.stage])


def _mixture(args) -> MixtureShape | None:
    """The model, if it is one. Raises BadInput where something was asked that is only of mixtures, or never of them."""
    model = _model(args)
    if isinstance(model, MixtureShape):
        refuse_ignored(args.given, ("--recompute",), "with a mixture of experts: no peak is estimated for it")
        return model
    refuse_ignored(args.given, ("--experts-over",), f"without experts: {args.model} has none")
    return None


def _model(args) -> GPTConfig | LlamaShape | MixtureShape | None:
    """The one of that name, or of that file, or None. Raises BadInput."""
    if args.model is None:
        return None
    shape = read_config(args.model) if is_config(args.model) else find_config(args.model)
    if args.seq is not None and args.seq > tokens_of(shape):
        raise BadInput(f"--seq can be at most {tokens_of(shape)} for {args.model}, not {args.seq}.")
    return shape


def tokens_of(shape: GPTConfig | LlamaShape | MixtureShape) -> int:
    """Of a sample, at most."""
    return shape.block_size if isinstance(shape, GPTConfig) else shape.tokens


def _params(args) -> int:
    model = _model(args)
    return args.params if model is None else model.params


def _peak(args, stage: int, **offload) -> int | None:
    """The peak on the device, where a model is known. offload: as for `states_peak`."""
    model, convention = _model(args), CONVENTIONS[args.convention]
    if model is None or isinstance(model, MixtureShape):
        return None
    how = (args.micro_batch or 1, args.seq or tokens_of(model), on_device(convention, offload.get("offloaded", False)))
    offload |= {"recompute": args.recompute or "selective", "accumulated": args.accumulation > 1}
    if isinstance(model, GPTConfig):
        return gpt2_peak_bytes(model, stage, args.ranks, *how, **offload)
    return llama_peak_bytes(model, stage, args.ranks, *how, **offload)


def _needs(args, where: Arrangement) -> Needs:
    model = _model(args)
    peak = _peak(args, where.stage, offloaded=where.optimizer != DEVICE, offloaded_parameters=where.parameters != DEVICE)
    unit = 0 if model is None or isinstance(model, MixtureShape) else largest_unit(model)
    return needs(where, _params(args), args.ranks, CONVENTIONS[args.convention], args.accumulation, device_peak=peak,
                 largest_unit=unit)


def _text(args, stages: list[dict], mixture: MixtureShape | None) -> str:
    convention, card, params = CONVENTIONS[args.convention], args.card, stages[0]["params"]
    name = f"{args.model}: " if args.model else ""
    lines = [f"{name}{params:,} parameters on {ranks(args)}, {sum(convention.sizes)} bytes per parameter "
             "({} parameter + {} gradient + {} optimizer)".format(*convention.sizes), ""]
    peaked = stages[0]["peak_bytes"] is not None
    rows = [["", "parameters", "gradients", "optimizer", "total a rank", "sent a step", "peak" if peaked else "",
             f"on {both(card)}"]]
    for row in stages:
        total, peak = row["total_bytes"], row["peak_bytes"]
        bar = "#" * max(1, round(BAR * total / stages[0]["total_bytes"]))
        verdict = "fits" if (peak or total) <= card else "too large"
        rows.append([f"{'>' if row['stage'] == args.stage else ' '} {STAGES[row['stage']]}", gb(row["parameters_bytes"]),
                     gb(row["gradients_bytes"]), gb(row["optimizer_bytes"]), both(total), gb(row["sent_bytes"]),
                     both(peak) if peak else "", f"{bar:{BAR}}  {verdict}"])
    lines += table([row[:6] + row[6 + (not peaked):] for row in rows], "<>>>>>" + ">" * peaked + "<")
    if mixture is not None:
        over = args.experts_over or 1
        have = f"{over} ranks have different ones of them" if over > 1 else "every rank has all of them"
        return "\n".join([*lines, "", (f"Each layer has {mixture.experts} experts, and {have}. A token takes {mixture.k} and uses "
                                       f"{mixture.used:,} parameters."), "Activations, buffers and a framework's own memory come on top."])
    largest = largest_params(card, args.stage, args.ranks, convention)
    fewest = fewest_ranks(params, args.stage, card, convention)
    needed = f"{fewest} rank{'s' * (fewest > 1)} or more" if fewest else "a larger card on any number of ranks"
    return "\n".join(lines + [
        "", (f"Model states at stage {args.stage} on a card of {both(card)}: {ranks(args)} hold{'s' * (args.ranks == 1)} at most "
         f"{largest:,} parameters, and {params:,} need {needed}."),
        "The peak adds activations, buckets and what is gathered; a framework's own memory comes on top." if args.model
        else "Activations, buffers and a framework's own memory come on top."])


def ranks(args) -> str:
    return f"{args.ranks} rank{'s' * (args.ranks > 1)}"


def _table1() -> Outcome:
    computed = paper_table1()
    rows = [["ranks", *computed[1]]]
    for ranks, models in computed.items():
        cells = (" / ".join(f"{nbytes / 1e9:.2f}".rstrip("0").rstrip(".") for nbytes in stages)
                 for stages in models.values())
        rows.append([str(ranks), *cells])
    head = "Model states a rank in GB at stage 1 / 2 / 3 (ZeRO paper, Table 1)"
    return Outcome("\n".join([head, "", *table(rows, ">" * len(rows[0]))]), computed)
