"""A plan as files with which it can be run: a ds_config.json, the line that launches it, and what it predicts.

    ds_config.json     for `zerocourse train`, the engine, or DeepSpeed itself
    launch.txt         one line for each machine
    prediction.json    what `zerocourse receipt` lays beside what was measured
"""

import json
from pathlib import Path

from ..errors import BadInput
from ..formulas.what_fits import DEVICE, DISK, HOST
from .by_formula import held_by
from .candidate import Candidate, Evaluation
from .mesh_parts import end_parts
from .question import Question

CONFIG, LAUNCH, PREDICTION = "ds_config.json", "launch.txt", "prediction.json"
DEVICES = {HOST: "cpu", DISK: "nvme"}  # a place, as DeepSpeed's files call it


def write_plan(folder: Path, question: Question, chosen: Evaluation, asked: dict) -> list[Path]:
    """Write the three files and return their paths. asked: the model and the cluster, as they were named.

    Raises BadInput for a mesh, which a ds_config.json cannot say, and OSError.
    """
    way = chosen.candidate
    if way.replica > 1:
        raise BadInput(f"--write cannot write {way.mesh}: a ds_config.json knows the data axis alone, so plan without --mesh, --tensor and "
                       "--pipeline")
    texts = {CONFIG: as_json(config_of(way)), LAUNCH: launch_line(folder, question, way, asked["model"]) + "\n",
             PREDICTION: as_json(asked | prediction(question, chosen))}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def as_json(data: dict) -> str:
    return json.dumps(data, indent=2) + "\n"


def config_of(way: Candidate) -> dict:
    """The candidate as a ds_config.json. The learning rate is the caller's."""
    zero: dict = {"stage": way.stage}
    for section, place in (("offload_optimizer", way.optimizer), ("offload_param", way.parameters)):
        if place != DEVICE:
            zero[section] = {"device": DEVICES[place]} | ({"nvme_path": "scratch"} if place == DISK else {})
    config = {"train_batch_size": way.samples, "train_micro_batch_size_per_gpu": way.micro_batch,
              "gradient_accumulation_steps": way.accumulation, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
              "zero_optimization": zero}
    config |= {way.dtype: {"enabled": True}} if way.half else {}
    config |= {"expert_parallel": {"enabled": True, "autoep_size": way.experts_over}} if way.experts_over > 1 else {}
    return config | ({"activation_checkpointing": {"number_checkpoints": None}} if way.recompute else {})


def launch_line(folder: Path, question: Question, way: Candidate, model: str) -> str:
    """For a GPT-2 `zerocourse train` itself; for others the user's own script. TEXT, HOST and train.py are the user's."""
    per_node = question.cluster.network.per_node
    nodes, left = divmod(way.ranks, per_node)
    several = f"--nnodes={nodes} --nproc-per-node={per_node} --rdzv-backend=c10d --rdzv-id=job --rdzv-endpoint=HOST:29400"
    start = f"python -m torch.distributed.run {several if nodes > 1 and not left else f'--nproc-per-node={way.ranks}'} -m zerocourse"
    if model.startswith("gpt2") and "/" not in model:
        return f"{start} train --config {folder / CONFIG} --model {model} --tokens {question.seq} --data TEXT"
    return f"{start} run train.py --deepspeed {folder / CONFIG}"


def prediction(question: Question, chosen: Evaluation) -> dict:
    """By the names of `summary.json`: bytes of a rank, model states just before the update; seconds and tokens of the cluster."""
    way = chosen.candidate
    states = held_by(end_parts(question.model, way)[0], way)
    return {"params": question.model.params, "way": str(way), "stage": way.stage, "ranks": way.ranks, "source": chosen.source,
            "train_batch_size": way.samples, "tokens_per_sample": question.seq,
            "predicted": {"parameters_bytes": states.parameters_bytes, "gradients_bytes": states.gradients_bytes,
                          "optimizer_bytes": states.optimizer_bytes, "total_bytes": states.total_bytes, "peak_bytes": chosen.peak_bytes,
                          "sent_bytes": sum(chosen.sent.get(link, 0) for link in ("inside", "between")),
                          "step_seconds": chosen.step_seconds, "tokens_per_second": chosen.tokens_per_second}}
