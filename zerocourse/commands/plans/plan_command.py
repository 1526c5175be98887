"""Which stage, how many GPUs, which micro-batch, does it fit, what does it cost, and why.

  zerocourse plan --model llama-7b --cluster 8xA100
  zerocourse plan --model llama-7b --cluster 64x8xH100 --batch "4194304 tokens" --ranks 64 128 256 --price 2.50
  zerocourse plan --model gpt2-xl --cluster 2xT4 --host 32GB
  zerocourse plan --model llama-70b --cluster 64x8xH100 --batch 1024 --mesh
  zerocourse plan --model gpt2-xl --cluster 8xA100 --write plan
  zerocourse plan --model mixtral-8x7b --cluster 8x8xH100 --batch "4194304 tokens"

Formulas evaluate all candidates within a second: stages 0 to 3, the ranks, micro-batches, recomputation, for a mixture over how many
ranks its experts are spread, and with --host and --disk the ways to offload.
Simulations of the package's own stages then confirm the best, or refuse them.
--mesh tries tensor and pipeline parallelism beside ZeRO, and needs --batch; without it only ZeRO is tried. Without --batch
the best has the most tokens a second per card, and with it the most of all cards. --write makes a folder with the best one's
ds_config.json, its launch line and its prediction, which `zerocourse receipt` lays beside what was measured.
"""

from dataclasses import asdict

from ...formulas.units import gb
from .. import Outcome
from ..arguments import MOST_RANKS, Checked, path, positive, size, whole
from ..terminal import table

HELP = "which stage, how many ranks and which micro-batch to train with on a cluster, and why"
SHOWN = 5  # rows of the table
MOST_SIMULATED = 100_000  # ranks, as in `simulate`


def configure(parser):
    parser.add_argument("--model", required=True, metavar="NAME",
                        help="gpt2-tiny to gpt2-xl, llama-7b to llama-1t, mixtral-8x7b, qwen3-30b-a3b, or the path of a Hugging Face config.json")
    parser.add_argument("--cluster", required=True, metavar="NAME",
                        help="2xT4, dgx2, 25xdgx2, 8xA100, 16x8xA100, 48x8xA100, 64x8xH100, another number of such nodes, or a JSON file")
    parser.add_argument("--batch", metavar="B", help='samples of an optimizer step, or "4194304 tokens" (default: any)')
    parser.add_argument("--ranks", nargs="+", action=CheckedAll, read=whole(1, MOST_SIMULATED), metavar="N",
                        help="world sizes to try (default: powers of two up to the cluster's cards)")
    parser.add_argument("--dtype", nargs="+", choices=("bf16", "fp16", "fp32"), metavar="TYPE",
                        help="bf16 or fp16 with fp32 master weights, fp32, or several (default bf16, or fp16 where cards have no bf16)")
    parser.add_argument("--seq", action=Checked, read=whole(1, MOST_RANKS), metavar="T",
                        help="tokens in a sample (default: the model's most)")
    parser.add_argument("--card", action=Checked, read=size(), metavar="SIZE",
                        help="memory of a card that tensors may take (default: nine tenths of it)")
    parser.add_argument("--host", action=Checked, read=size(), default=0, metavar="SIZE",
                        help="host memory per rank, for offload")
    parser.add_argument("--disk", action=Checked, read=size(), default=0, metavar="SIZE",
                        help="disk space per rank, for offload")
    parser.add_argument("--disk-rate", action=Checked, read=size(), metavar="SIZE",
                        help="bytes a second of the disk, per rank")
    parser.add_argument("--price", action=Checked, read=positive("any currency"), metavar="P",
                        help="of one card for one hour")
    parser.add_argument("--most-micro-batch", action=Checked, read=whole(1, 4096), default=64, metavar="B",
                        help="the largest micro-batch to try (default 64)")
    parser.add_argument("--mesh", action="store_true",
                        help="try tensor and pipeline parallelism too (default: ZeRO over all ranks); needs --batch")
    parser.add_argument("--tensor", action=Checked, read=whole(1, MOST_RANKS), metavar="T",
                        help="ranks of the tensor axis, which may leave a node (default: 1, with --mesh any in a node)")
    parser.add_argument("--pipeline", action=Checked, read=whole(1, MOST_RANKS), metavar="P",
                        help="ranks of the pipeline axis (default: 1, with --mesh any)")
    parser.add_argument("--simulate", action=Checked, read=whole(0, 20), metavar="K",
                        help="how many of the best to simulate, each a few seconds, and a mesh half a minute; 0: formulas "
                             "alone (default 3, of meshes 1)")
    parser.add_argument("--write", action=Checked, read=path, metavar="DIR",
                        help="write the ds_config.json of the best, its launch line and its prediction there")


class CheckedAll(Checked):
    """The same for an option with several values."""

    def __call__(self, parser, namespace, texts, option=None):
        values = []
        for text in texts:
            super().__call__(parser, namespace, text, option)
            values.append(getattr(namespace, self.dest))
        setattr(namespace, self.dest, tuple(values))


def run(args) -> Outcome:
    from ...launch.progress_bar import progress_bar
    from ...planning import ask, plan  # here: torch takes two seconds to import
    from ...planning.plan_files import write_plan
    from ...planning.question import Rates
    from ...planning.reasons import by_axis, choice, nothing_fits, why
    question = ask(args.model, args.cluster, args.batch, args.ranks, args.dtype and tuple(args.dtype), args.seq, args.card, args.host,
                   args.disk,
                   args.price, args.most_micro_batch, Rates(disk=args.disk_rate), args.mesh, args.tensor, args.pipeline)
    simulations = (1 if question.has_meshes else 3) if args.simulate is None else args.simulate
    with progress_bar(simulations, leave=False, bar_format="simulating {n_fmt} of {total_fmt}: {desc} [{elapsed}]") as bar:
        def show(done: int, candidate) -> None:
            bar.n = done + 1
            bar.set_description_str(str(candidate))

        found = plan(question, simulations, show)
    asked = {"model": args.model, "params": question.model.params, "cluster": args.cluster, "seq": question.seq,
             "batch": question.batch, "ranks": list(question.ranks), "card_bytes": question.budgets["device"],
             "considered": found.considered}
    if found.chosen is None:
        lines = nothing_fits(question)
        return Outcome("\n".join(lines), asked | {"chosen": None, "best": [], "why": lines}, ok=False)
    reasons, sentence = why(found), choice(found)
    if axes := by_axis(found.chosen):
        sentence += " On this mesh " + "; ".join(axes) + "."
    best = [row(each) for each in found.ranking[:SHOWN]]
    kinds = {kind: each and row(each) for kind, each in found.best_by_kind().items()}
    data = asked | {"chosen": best[0], "best_by_kind": kinds, "sentence": sentence, "why": reasons, "best": best}
    said = text(question, found, sentence, reasons)
    if args.write:
        files = write_plan(args.write, question, found.chosen, {"model": args.model, "cluster": args.cluster})
        said += f"\n\nWritten: {', '.join(map(str, files))}."
        data["written"] = list(map(str, files))
    return Outcome(said, data)


def row(evaluation) -> dict:
    """An evaluation as an object: bytes are integers, of one rank and one optimizer step."""
    kinds = {f"{kind.partition(',')[0].replace(' ', '_')}_bytes": nbytes for kind, nbytes in evaluation.kinds.items()}
    return {**asdict(evaluation.candidate), "source": evaluation.source, **kinds, "peak_bytes": evaluation.peak_bytes,
            "held_bytes": dict(evaluation.held), "sent_bytes": sum(evaluation.sent.values()),
            "sent_bytes_by_link": dict(evaluation.sent), "step_seconds": evaluation.step_seconds,
            "compute_seconds": evaluation.compute_seconds, "exposed_seconds": evaluation.exposed_seconds,
            "tokens_per_second": evaluation.tokens_per_second, "tokens_per_second_per_card": evaluation.tokens_per_card,
            "traffic": [each._asdict() for each in evaluation.traffic], "bubble_seconds": evaluation.bubble,
            "cost_per_billion_tokens": evaluation.cost}


def text(question, found, sentence: str, reasons: list[str]) -> str:
    shown, priced = found.ranking[:SHOWN], question.price is not None
    lines = [(f"{question.model.name}, {question.model.params:,} parameters, samples of {question.seq:,} tokens, on "
              f"{question.cluster_name}: {found.considered:,} candidates"), "", sentence, ""]
    rows = [["", "", "peak", "sent", "step", "waits", "tokens/s", "per card", "10⁹ tokens"]]
    rows += [[f"{'>' if each is found.chosen else ' '} {each.candidate}", each.source, gb(each.peak_bytes),
              gb(sum(each.sent.values())), f"{each.step_seconds:.3g} s", f"{each.exposed_seconds:.2g} s",
              f"{each.tokens_per_second:,.0f}", f"{each.tokens_per_card:,.0f}", f"{each.cost:,.2f}" if priced else ""] for each in shown]
    lines += table([row[:8 + priced] for row in rows], "<" + ">" * (7 + priced))
    if question.has_meshes:
        lines += ["", "The best of each kind:"]
        for kind, each in found.best_by_kind().items():
            lines.append(f"- {kind}: " + (f"{each.tokens_per_second:,.0f} tokens a second, {each.candidate}" if each else "nothing fits"))
    lines += ["", "Why not its neighbours?", *(f"- {line}" for line in reasons), "",
              "Simulated: the package's own stage, on tensors without memory. Computed: by formula, and not simulated.",
              *["Where a mesh is simulated, what a rank holds and sends is; its seconds are computed."] * question.has_meshes,
              (f"Times are at {question.cluster.machine.efficiency:.0%} of the card's peak. Tensors may take "
               f"{gb(question.budgets['device'])} of a card: the rest is for a framework and its allocator (--card)."),
              f"Figures: {question.cluster.source}."]
    if question.budgets["host"]:
        lines.append("Offload is only computed, over a link of PCIe 4.0 x16, with 51 GB/s of host memory for each "
                     "card, and with nothing hidden.")
    return "\n".join(lines)
