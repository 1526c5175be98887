"""Trains a GPT-2 on text of yours under a ds_config.json, on ranks of this machine or under torchrun.

  zerocourse train --config ds_config.json --data book.txt --model gpt2-tiny --nproc 2
  zerocourse train --config ds_config.json --data book.txt --model gpt2-tiny --nproc 3 --steps 200 --resume
  zerocourse train --config ds_config.json --data book.txt --nproc 2 --max-restarts 3 --save-every 20
  torchrun --nproc-per-node 2 -m zerocourse train --config ds_config.json --data book.txt --model gpt2

Writes training_metrics.csv (one line for each step), training_curves.png, summary.json and deepspeed_config_auto.json
(the config with every "auto" and every default resolved) to --out, and checkpoints to --checkpoints. --resume goes on
from the latest of them, at another number of ranks too, without a sample lost or seen twice. When a rank dies and there
are restarts left (--max-restarts, torchrun's own under torchrun), all ranks start again and go on from the latest
checkpoint of this run, or from the beginning. The batch stays as large as it was, also on fewer or more nodes (torchrun
--nnodes 1:2 --rdzv-id NAME): the accumulation follows, so the config should not fix it. Where the config says "auto",
--lr and --micro-batch count, the norm of gradients is clipped to 1, and schedules last --steps, a tenth of which is the
warm-up. Without a section optimizer it is AdamW with --lr. Exit status 1 when the loss is no number any more.
"""

import csv
import importlib.metadata
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path

from ..errors import BadInput
from ..formulas.gpt2_config import find_config
from ..formulas.units import gb
from . import Outcome
from .arguments import MOST_SEED, Checked, add_device, check_folder, path, positive, refuse_ignored, set_device, whole

HELP = "train a GPT-2 on your text under a ds_config.json, with checkpoints; --resume continues"
FROM_OPTIONS = {  # the keys that an option fills in where they are "auto"
    "--lr": ("optimizer.params.lr", "scheduler.params.warmup_max_lr"),
    "--micro-batch": ("train_micro_batch_size_per_gpu",),
}


def configure(parser):
    parser.add_argument("--config", action=Checked, read=path, required=True, metavar="FILE", help="a ds_config.json")
    parser.add_argument("--data", action=Checked, read=path, required=True, metavar="PATH",
                        help="text: a file, a folder, a .npy file of tokens, or a Hugging Face dataset on disk")
    parser.add_argument("--model", default="gpt2-tiny", metavar="NAME", help="a GPT-2 by name (default gpt2-tiny)")
    parser.add_argument("--nproc", "--ranks", dest="ranks", action=Checked, read=whole(1), default=2, metavar="N",
                        help="processes (default 2); under torchrun it says how many")
    parser.add_argument("--max-restarts", action=Checked, read=whole(0), default=0, metavar="N",
                        help="how often the ranks may start again after one of them died or failed (default 0)")
    parser.add_argument("--steps", action=Checked, read=whole(1), default=100,
                        help="optimizer steps, counted from the very beginning (default 100)")
    parser.add_argument("--tokens", action=Checked, read=whole(1), metavar="T",
                        help="tokens in a sample (default: as many as the model reads at most)")
    parser.add_argument("--micro-batch", action=Checked, read=whole(1), default=4, metavar="B",
                        help='samples per rank and micro-batch, where the config says "auto" (default 4)')
    parser.add_argument("--lr", action=Checked, read=positive(""), default=1e-3, metavar="RATE",
                        help='the learning rate, where the config says "auto" (default 0.001)')
    parser.add_argument("--seed", action=Checked, read=whole(0, MOST_SEED), default=0,
                        help="of the parameters and of the order of the samples (default 0)")
    add_device(parser, "auto: a GPU if there is one")
    parser.add_argument("--resume", action="store_true", help="continue from the latest checkpoint")
    parser.add_argument("--save-every", action=Checked, read=whole(1), default=100, metavar="K",
                        help="steps between two checkpoints (default 100); the last step is saved too")
    parser.add_argument("--keep", action=Checked, read=whole(1), metavar="N",
                        help="checkpoints that stay: the last N (default: all of them)")
    parser.add_argument("--checkpoints", action=Checked, read=path, default=Path("output/checkpoints"), metavar="DIR",
                        help="default output/checkpoints")
    parser.add_argument("--out", action=Checked, read=path, default=Path("output/deepspeed_metrics"), metavar="DIR",
                        help="default output/deepspeed_metrics")


def run(args) -> Outcome:
    import torch.distributed as dist  # here, because torch takes two seconds to import

    set_device(args, "auto")
    if not dist.is_torchelastic_launched():
        settings = prepare(args, args.ranks)
        return outcome(args, settings, launched(settings, args.ranks, args.max_restarts))
    from ..comm import bootstrap
    from ..engine.train import train
    from ..launch.progress_bar import progress_bar

    refuse_ignored(args.given, ("--nproc", "--ranks"), "under torchrun, which says how many ranks there are")
    refuse_ignored(args.given, ("--max-restarts",), "under torchrun, which has a --max-restarts of its own")
    bootstrap.init(timeout_seconds=1800)  # as the engine does, because one rank may write a checkpoint meanwhile
    rank, ranks = dist.get_rank(), dist.get_world_size()
    settings = prepare(args, ranks, writes=rank == 0)
    with progress_bar(settings.steps, wanted=rank == 0) as bar:
        got = train(settings, lambda row: (bar.update(row["step"] - bar.n), bar.set_postfix(loss=f"{row['loss']:.3f}")))
    of_ranks: list = [None] * ranks
    dist.all_gather_object(of_ranks, got)
    return outcome(args, settings, of_ranks) if rank == 0 else Outcome("", said_by_another=True)


def launched(settings, ranks: int, max_restarts: int = 0) -> list[dict]:
    """The run on ranks of its own: what `train` returned on each. Raises BadInput, and what `launch` raises."""
    from tqdm import tqdm

    from ..launch.launcher import launch
    from ..launch.processes.failures import RankError

    try:
        return list(launch(in_rank, settings, nproc=ranks, max_restarts=max_restarts, only=(),
                           echo=lambda line: tqdm.write(line, file=sys.stderr)))
    except RankError as error:
        if error.kind == BadInput.__name__:
            raise BadInput(error.message) from error
        raise


def in_rank(settings) -> dict:
    """What each of them does."""
    from ..engine.train import train
    from ..launch.worker import progress

    return train(settings, lambda row: progress(row["step"], settings.steps, loss=round(row["loss"], 3)))


# Before any work ------------------------------------------------------------------------------------------------------

def prepare(args, ranks: int, writes: bool = True):
    """The settings of a run that can be. writes: this process tries the folders. Raises BadInput."""
    from dataclasses import replace

    from ..comm import bootstrap
    from ..data.tokens import TokenStream
    from ..engine.train import TrainSettings, open_dataset
    from .earlier_run import check_resume, of_earlier_attempt
    from .estimates import check_ranks

    model = find_config(args.model)
    if (args.tokens or 1) > model.block_size:
        raise BadInput(f"--tokens is {args.tokens}: {args.model} reads at most {model.block_size} tokens")
    check_ranks(ranks, "--nproc")
    earlier = of_earlier_attempt(args)
    config = resolve(args, ranks, earlier and earlier["batch"])
    settings = TrainSettings(config.as_dict(), model, args.data, args.steps, args.tokens, args.seed, args.checkpoints,
                             args.save_every, args.resume or earlier is not None, may_restart=args.max_restarts > 0,
                             run=bootstrap.run_id(), keep=args.keep)
    stream = TokenStream(open_dataset(settings), 0, ranks, config.train_micro_batch_size_per_gpu,
                         config.gradient_accumulation_steps, args.seed)
    if earlier is None:
        check_resume(args, stream)
    if writes:
        check_folder(args.out, "--out")
        check_folder(args.checkpoints, "--checkpoints")
        check_machine(config, replace(model, block_size=args.tokens or model.block_size), ranks, args.steps)
    return settings


def resolve(args, ranks: int, batch: list[int] | None = None):
    """The config, with what the options say of its "auto"s. Raises BadInput.

    batch: samples in a step and in a micro-batch, of an earlier attempt that may have had another number of ranks.
    """
    from ..engine.config import Config
    from ..engine.config.auto import AUTO
    from ..engine.config.json_file import parse, read_text
    from ..engine.config.problems import MISSING, get

    given = parse(read_text(args.config), args.config)
    for option, keys in FROM_OPTIONS.items():
        without = option == "--lr" and given.get("optimizer") is None
        if option in args.given and not without and all(get(given, key) != AUTO for key in keys):
            raise BadInput(f'{option} would change nothing: {args.config} has {keys[0]} = {get(given, keys[0])!r}, '
                           f'and {option} counts where it is "auto"')
    if batch is not None:
        train, micro = batch
        if get(given, "train_micro_batch_size_per_gpu") in (AUTO, MISSING) and "--micro-batch" not in args.given:
            micro = math.gcd(micro, train // ranks) if train % ranks == 0 else micro
        given |= {"train_batch_size": train, "train_micro_batch_size_per_gpu": micro}
        given.pop("gradient_accumulation_steps", None)
    known = {"optimizer.params.lr": args.lr, "optimizer.params.betas": [0.9, 0.999], "optimizer.params.eps": 1e-8,
             "optimizer.params.weight_decay": 0.0, "gradient_clipping": 1.0, "bf16.enabled": False,
             "fp16.enabled": False, "scheduler.params.warmup_max_lr": args.lr,
             "scheduler.params.warmup_num_steps": max(2, args.steps // 10),
             "scheduler.params.total_num_steps": args.steps}
    if "--micro-batch" in args.given or get(given, "train_batch_size") in (AUTO, MISSING):
        known["train_micro_batch_size_per_gpu"] = args.micro_batch
    config = Config.load(args.config if batch is None else given, ranks, known)
    if config.optimizer is None:
        adamw = {"type": "AdamW", "params": {"lr": args.lr}}
        config = Config.load(config.as_dict() | {"optimizer": adamw}, ranks)
    return config


def check_machine(config, model, ranks: int, steps: int) -> None:
    """Raise BadInput when the ranks do not fit in this machine's memory; say so when the run takes long."""
    from ..bench.runner import PROCESS_BYTES
    from ..engine.config.explain import counts
    from ..formulas.transformer import gpt2_step_flops
    from .estimates import START_SECONDS, Estimate, check_memory, say, step_seconds

    of_rank = counts(config, model, ranks)
    flops = config.gradient_accumulation_steps * gpt2_step_flops(
        model.params, model.n_layer, model.n_embd, config.train_micro_batch_size_per_gpu, model.block_size)
    takes = Estimate((of_rank["peak_bytes"] or of_rank["total_bytes"]) + PROCESS_BYTES, ranks,
                     START_SECONDS + steps * step_seconds(flops, model.params, ranks))
    check_memory(takes, "use a smaller micro-batch, fewer --tokens, a higher stage, or a smaller --model")
    say("train", takes)


# Afterwards -----------------------------------------------------------------------------------------------------------

def outcome(args, settings, of_ranks: list[dict]) -> Outcome:
    """Write the files, and say how the run went. of_ranks: what `train` returned on each rank."""
    summary = summarise(args, settings, of_ranks)
    rows = of_ranks[0]["rows"]
    write(args.out, rows, summary, settings.config)
    ranks, last = len(of_ranks), rows[-1]
    lines = [(f"{args.model} ({summary['params']:,} parameters) at stage {summary['stage']} on {ranks} "
              f"rank{'s' * (ranks > 1)}, {summary['train_batch_size']} samples of {summary['tokens_per_sample']} tokens in a step"),
             f"step {last['step']}: the loss went from {rows[0]['loss']:.4f} to {last['loss']:.4f}, "
             f"{summary['tokens_per_second']:,.0f} tokens per second"
             + (f", resumed after step {summary['resumed_from']}" if summary["resumed_from"] else ""),
             *held(summary),
             f"written to {args.out}/, the checkpoint to {summary['checkpoint']}"]
    if not summary["ok"]:
        lines.append("The loss is no number any more: lower the learning rate, or clip the gradients.")
    return Outcome("\n".join(lines), summary, summary["ok"])


def held(summary: dict) -> list[str]:
    """The line about bytes; none when an earlier attempt had made all the steps, so that nothing was measured."""
    if None in summary["total_bytes"]:
        return []
    from ..engine.train import DEVICE_PEAK

    on_gpu = f"; its GPU's allocator had {gb(max(summary[DEVICE_PEAK]))} in use at most" if DEVICE_PEAK in summary else ""
    return [(f"a rank held {gb(max(summary['total_bytes']))} of model states, {gb(max(summary['peak_bytes']))} at the "
             f"peak, and sent {gb(max(summary['sent_bytes']))} per step{on_gpu}")]


def summarise(args, settings, of_ranks: list[dict]) -> dict:
    """What summary.json has: counts of bytes as lists with one entry per rank, the rest of the whole run."""
    from ..engine.train import BYTES, DEVICE_PEAK

    rows, first = of_ranks[0]["rows"], of_ranks[0]
    new = [row for row in rows if row["step"] > (first["resumed_from"] or 0)] or rows
    losses = [row["loss"] for row in rows]
    return {"ok": all(map(math.isfinite, losses)), "model": args.model, "params": settings.model.params,
            "stage": settings.config["zero_optimization"]["stage"], "ranks": len(of_ranks), "device": first["device"],
            "torch": importlib.metadata.version("torch"),
            "train_batch_size": settings.config["train_batch_size"],
            "tokens_per_sample": settings.tokens or settings.model.block_size, "steps": rows[-1]["step"],
            "epoch": rows[-1]["epoch"], "samples": rows[-1]["samples"], "resumed_from": first["resumed_from"],
            "losses": [loss if math.isfinite(loss) else None for loss in losses],  # JSON has no NaN
            "step_seconds": statistics.median(row["step_seconds"] for row in new),
            "tokens_per_second": statistics.median(row["tokens_per_second"] for row in new),
            **{name: [got[name] for got in of_ranks] for name in (*BYTES, DEVICE_PEAK) if name in first},
            "checkpoint": str(args.checkpoints / f"global_step{rows[-1]['step']}")}


def write(out: Path, rows: list[dict], summary: dict, config: dict) -> None:
    """The four files; each appears whole or not at all."""
    from ..course.show.plots_training import training_curves

    out.mkdir(parents=True, exist_ok=True)
    title = f"{summary['model']}, stage {summary['stage']}, {summary['ranks']} rank{'s' * (summary['ranks'] > 1)}"
    with tempfile.TemporaryDirectory(dir=out) as draft:
        made = Path(draft)
        with (made / "training_metrics.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
        (made / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        (made / "deepspeed_config_auto.json").write_text(json.dumps(config, indent=2) + "\n")
        training_curves(rows, title, summary["resumed_from"]).savefig(made / "training_curves.png", dpi=110)
        for file in made.iterdir():
            file.replace(out / file.name)
