"""Hugging Face's trainers on our stages, case by case: `python -m tools.trainer_matrix [--out FILE] [--only WORDS ...]`.

A case is a training (full, LoRA, TRL's SFTTrainer), a stage, a precision, an offload and a number of ranks. Each trains four steps of a
tiny GPT-2, evaluates, saves twice, loads the best model, generates, saves that, and is resumed from its first checkpoint, to the
losses of the unbroken run. One launch of N ranks imports once and runs all of its cases. Prints a table in Markdown: what passed, and
the sentence where something did not.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

TRAININGS, STAGES, PRECISIONS, OFFLOADS, RANKS = ("full", "LoRA", "SFT"), (1, 2, 3), ("fp32", "bf16", "fp16"), ("none", "cpu", "nvme"), (1, 2, 3)
CASES = list(itertools.product(TRAININGS, STAGES, PRECISIONS, OFFLOADS))
STEPS = 4


def name_of(training: str, stage: int, precision: str, offload: str) -> str:
    return f"{training} stage-{stage} {precision} offload-{offload}"


# -- in the ranks ----------------------------------------------------------------------------------------------------


def make(training: str, stage: int, precision: str, offload: str, folder: str):
    """The trainer of a case."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainingArguments
    from trl import SFTConfig, SFTTrainer

    zero = {"stage": stage}
    if offload != "none":
        zero["offload_optimizer"] = {"device": offload} | ({"nvme_path": f"{folder}/nvme"} if offload == "nvme" else {})
    config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "zero_optimization": zero,
              "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "initial_scale_power": 8}}
    settings = {"output_dir": folder, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "max_steps": STEPS,
                "learning_rate": 0.01, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2,
                "load_best_model_at_end": True, "report_to": "none", "disable_tqdm": True, "bf16": precision == "bf16",
                "fp16": precision == "fp16", "use_cpu": True, "deepspeed": config}
    args = SFTConfig(**settings, max_length=8) if training == "SFT" else TrainingArguments(**settings)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
                                       pad_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    model.generation_config.pad_token_id = 0
    rows = [{"input_ids": [(number * step + step) % 31 + 1 for step in range(8)]} for number in range(8 * 3)]
    data = Dataset.from_list([row | {"labels": row["input_ids"]} for row in rows])
    if training == "LoRA":
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"))
    if training != "SFT":
        return Trainer(model=model, args=args, train_dataset=data, eval_dataset=data.select(range(6)))
    tokens = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0")),
                                     pad_token="w0", eos_token="w0", unk_token="w0")
    data = data.remove_columns("labels")
    return SFTTrainer(model=model, args=args, train_dataset=data, eval_dataset=data.select(range(6)), processing_class=tokens)


def losses(trainer) -> dict[int, float]:
    return {log["step"]: log["loss"] for log in trainer.state.log_history if "loss" in log}


def run(case: tuple, folder: str) -> str:
    """"passed", or what went wrong."""
    import torch

    trainer = make(*case, folder)
    trainer.train()
    through = losses(trainer)
    if not all(0 < loss < 100 for loss in through.values()) or trainer.evaluate()["eval_loss"] != trainer.evaluate()["eval_loss"]:
        return f"losses {through}"
    said = trainer.model.generate(input_ids=torch.tensor([[1, 2, 3]]), max_new_tokens=3, do_sample=False, synced_gpus=case[1] == 3)
    if not 3 < said.shape[1] <= 6:
        return f"generated {said.tolist()}"
    trainer.save_model(f"{folder}/saved")
    torch.distributed.barrier()
    if not list(Path(folder, "saved").glob("*.safetensors")):
        return "save_model wrote no weights"
    again = make(*case, folder)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    resumed = losses(again)
    unlike = {step: (through[step], resumed.get(step)) for step in (3, 4) if abs(through[step] - resumed.get(step, 1e9)) > 1e-6}
    return f"resumed to other losses: {unlike}" if unlike else "passed"


def in_turn(names: list[str], out: str | None = None) -> dict[str, str]:
    """What was said of each of these cases, on this rank.   out: a file to which rank 0 adds what any rank said, a line a case."""
    import torch.distributed as dist

    from zerocourse import init_distributed

    init_distributed()
    seen = {}
    for name, case in {name_of(*case): case for case in CASES}.items():
        if name not in names:
            continue
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        try:
            seen[name] = run(case, folder[0])
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        by_rank: list = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, seen[name])
        if dist.get_rank() == 0:
            shutil.rmtree(folder[0], ignore_errors=True)
            if out is not None:
                with open(out, "a") as file:
                    said = next((each for each in by_rank if each != "passed"), "passed")
                    file.write(json.dumps({"case": name, "ranks": dist.get_world_size(), "said": said}) + "\n")
    return seen


# -- around them -----------------------------------------------------------------------------------------------------


def table(out: Path) -> str:
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    passed, failed = [row for row in rows if row["said"] == "passed"], [row for row in rows if row["said"] != "passed"]
    lines = [f"{len(passed)} of {len(rows)} cases passed", "", "| ranks | training | " + " | ".join(
        f"stage {stage}, {precision}" for stage in STAGES for precision in PRECISIONS) + " |", "|" + " --- |" * 11]
    said = {(row["case"], row["ranks"]): "+" if row["said"] == "passed" else "x" for row in rows}
    for ranks, training in itertools.product(RANKS, TRAININGS):
        cells = ["".join(said.get((name_of(training, stage, precision, offload), ranks), ".") for offload in OFFLOADS)
                 for stage in STAGES for precision in PRECISIONS]
        lines.append(f"| {ranks} | {training} | " + " | ".join(cells) + " |")
    lines += ["", f"(a cell: offload {', '.join(OFFLOADS)}; + passed, x did not, . was not run)", ""]
    return "\n".join(lines + [f"- {row['case']}, {row['ranks']} ranks: {row['said']}" for row in failed])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("output/trainer_matrix.jsonl"), help="one line a case")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names have one of these words")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.unlink(missing_ok=True)
    names = [name for name in itertools.starmap(name_of, CASES) if any(word in name for word in args.only)]
    for ranks in args.ranks:
        subprocess.run([sys.executable, "-m", "zerocourse", "run", "--nproc", str(ranks), __file__, str(args.out.resolve()), *names])
        print(table(args.out), flush=True)
    return 0


if __name__ == "__main__":
    if "RANK" in os.environ and len(sys.argv) > 2:
        warnings.simplefilter("ignore")
        in_turn(sys.argv[2:], out=sys.argv[1])
    else:
        sys.exit(main())
