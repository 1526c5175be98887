"""The checks of 6.4 and 6.5: what stage 2 does with a full bucket, and which micro-batches are reduced."""

import gc
import weakref

import numpy
import torch

from ....zero.shard import shard
from ....comm.group import Handle
from ....init.deferred import deferred_init
from ....models.gpt2 import GPT
from ....layout.rankmap import Layout
from ....zero.stage2 import reduce_scatter_and_free
from ..exercise import exercise
from ..lab import Lab
from . import stage_runs
from .stage_runs import CONFIG, WatchedComm
from .stage_probe import flats_of, give_gradient, near, numbers, same_calls

# 6.4 ----------------------------------------------------------------------------------------------------------------

SHAPES = [(5,), (2,)]
MICROS = 3


def dropped_on_a_rank(answer):
    """Three micro-batches of each flat: what is there after each, and which memory is alive."""
    comm, seen = WatchedComm(), []
    for flat in flats_of(SHAPES, 2, comm):
        own, of_flat = flat.own.stop - flat.own.start, []
        dropped, drop = [], flat.drop_bucket
        flat.drop_bucket = lambda dropped=dropped, drop=drop: dropped.append(1) or drop()
        for micro in range(MICROS):
            comm.elements.clear(), comm.calls.clear(), dropped.clear()
            if micro and flat.grad is None and not of_flat[-1]["dropped"]:
                drop()  # what the answer left half done would be memory without content
            give_gradient(flat, numbers(flat.layout.numel, comm.rank) * (micro + 1))
            memory = numpy.empty(flat.layout.padded, dtype=numpy.float32)  # its life is that of the bucket's memory
            alive = weakref.ref(memory)
            flat.grad = torch.from_numpy(memory).copy_(flat.grad)
            del memory
            before = flat.grad.clone()
            with same_calls():
                handle = answer(flat, comm)
                returned, kind, under_way = isinstance(handle, Handle), type(handle).__name__, flat.grad is None
                waited = returned and handle.tensor is None  # it lets go of its row when it is complete
                if returned:
                    handle.wait()
            started, forgotten = bool(comm.calls), comm.wait_for_forgotten()
            gc.collect()  # the handle is still there, but what it carried must be gone
            shard = flat.grad_shard
            of_flat.append({"returned": returned, "kind": kind, "under_way": under_way, "before": before,
                            "waited": waited, "started": started, "forgotten": forgotten, "alive": alive() is not None,
                            "bucket": flat.grad is not None, "dropped": bool(dropped), "sent": dict(comm.elements),
                            "shard": shard.clone() if torch.is_tensor(shard) else None,
                            "holds": shard.untyped_storage().nbytes() - 4 * own if torch.is_tensor(shard) else 0})
        seen.append(of_flat)
    return seen


@exercise("6.4", "Drop the bucket", minutes=25, difficulty=2, answer="reduce_and_drop", own=reduce_scatter_and_free,
          replaces=("zerocourse.zero.stage2:*", "zerocourse.zero.stage1:*", "zerocourse.zero.ddp:*"), timeout=15)
def reduce_and_drop(lab: Lab):
    for world in (2, 3):
        found = lab.run(dropped_on_a_rank, world=world)
        for number, shape in enumerate(SHAPES):
            for micro in range(MICROS):
                _judge_drop(lab, [[seen[number][m] for m in range(micro + 1)] for seen in found], shape[0], world)
    stage_runs.judge(lab, ["reduce"], 2, 2, accumulation=2)
    return "no full gradient outlives its reduction, micro-batches add up, and GPT-2 trains with it."


def _judge_drop(lab, found, numel, world):
    layout, micro = Layout.build({"row": (numel,)}, world), len(found[0]) - 1
    case = f"a bucket of {numel} gradients on {world} ranks, micro-batch {micro + 1}"
    sums = [torch.stack([seen[m]["before"] for seen in found]).sum(0) for m in range(micro + 1)]
    for rank, of_rank in enumerate(found):
        seen, own = of_rank[-1], layout.slice(rank)
        right, got, mine = sum(total[own] for total in sums), seen["shard"], seen["before"][own]
        if not seen["started"]:
            lab.wrong(f"{case}: rank {rank} called no collective of `comm`, so its gradients stay its own. Call "
                      "comm.reduce_scatter.")
        if seen["sent"].get("all_gather"):
            lab.wrong(f"{case}: rank {rank} also gathered the summed gradients: that makes it an all-reduce, twice the "
                      "traffic, and all of the gradient is on every rank again.")
        if not seen["returned"] and seen["forgotten"]:
            lab.wrong(f"{case}: rank {rank} started a reduce-scatter and returned {seen['kind']}. Nobody can wait for "
                      "it: return the handle.")
        if not seen["returned"]:
            lab.wrong(f"{case}: rank {rank} returned {seen['kind']} after it had waited for the sum. The backward "
                      "stands still meanwhile: return the handle, and let the stage wait for it.")
        if got is None:
            lab.wrong(f"{case}: afterwards `flat.grad_shard` of rank {rank} is None: who takes the sum when it "
                      "arrives? Give the reduce-scatter a function, done=...")
        if seen["bucket"]:
            lab.wrong(f"{case}: afterwards `flat.grad` of rank {rank} is still there. The bucket is "
                      f"{4 * layout.padded} bytes, and this rank needs its slice alone: take it out with "
                      "flat.drop_bucket().")
        if got.shape != right.shape:
            lab.wrong(f"{case}: `flat.grad_shard` of rank {rank} has {tuple(got.shape)} elements where "
                      f"{tuple(right.shape)} are right: its slice alone.")
        if not near(got, right):
            before = sum((total[own] for total in sums[:-1]), torch.zeros_like(mine))
            models = [
                ("You replaced the sum of the earlier micro-batches: add the new one to it, with flat.accumulate.",
                 sums[-1][own] if micro else None),
                ("You divided by the number of ranks again: the gradients in the bucket are divided already.",
                 right / world),
                ("You multiplied by the number of ranks: the gradients in the bucket are divided, and their sum is the "
                 "average.", right * world),
                ("That is this rank's own gradient: take what `done` is given, the sum.", before + mine),
                ("You added this micro-batch twice.", right + sums[-1][own]),
                ("You added this micro-batch twice.", right + mine),
            ]
            why = next((why for why, model in models if model is not None and near(got, model)), "")
            lab.wrong(f"{case}: `flat.grad_shard` of rank {rank} is {got.tolist()}, and {right.tolist()} is right. "
                      f"{why}".rstrip())
    for rank, of_rank in enumerate(found):
        seen = of_rank[-1]
        if seen["alive"] and seen["holds"] > 0:
            lab.wrong(f"{case}: the values are right, but `flat.grad_shard` of rank {rank} is a view of the bucket, "
                      f"and keeps all of its {4 * layout.padded} bytes alive. Let the sum have memory of its own: "
                      "leave out `into`.")
        if seen["alive"]:
            lab.wrong(f"{case}: the values are right, but the bucket's memory is alive on rank {rank} after the sum "
                      "has arrived: somebody still refers to it. The handle must have the last reference.")
        if not seen["under_way"]:
            lab.wrong(f"{case}: the values are right, but while the reduction of rank {rank} was under way the bucket "
                      "was still `flat.grad`: the next gradients would be added to what is being sent. Drop it before "
                      "you return.")
        if seen["waited"]:
            lab.wrong(f"{case}: the values are right, but rank {rank} had waited for the sum before it returned the "
                      "handle. The backward stands still meanwhile: return the handle at once, and let the stage wait "
                      "for it.")
        if not seen["dropped"]:
            lab.wrong(f"{case}: rank {rank} set `flat.grad` to None by hand. The flat buffer still takes the "
                      "bucket for filled, and adds the next gradients to whatever the new memory holds: "
                      "flat.drop_bucket() clears both.")


# 6.5 ----------------------------------------------------------------------------------------------------------------

G = 3


def accumulated_on_a_rank(answer, stage):
    """Two steps of the tiny GPT-2 with SGD: by the answer, and by loops with and without a mistake at stage 0."""
    return {"mine": _steps(answer, stage), "right": _steps(_loop(), 0), "summed": _steps(_loop(scale=1.0), 0),
            "last": _steps(_loop(only=[G - 1]), 0), "last alone": _steps(_loop(only=[G - 1], scale=1.0), 0),
            "left": _steps(_loop(clear=False), 0)}


def _loop(scale=1 / G, only=range(G), clear=True):
    def train_step(model, optimizer, micro_batches):
        losses = []
        for number, (x, y) in enumerate(micro_batches):
            loss = model(x, y)
            if number in only:
                (loss * scale).backward()
            losses.append(loss.item())
        optimizer.step()
        if clear:
            optimizer.zero_grad()
        return sum(losses) / len(losses)
    return train_step


def _steps(train_step, stage):
    comm = WatchedComm()
    with deferred_init():
        model = GPT(CONFIG)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.5), stage=stage, comm=comm)
    start = [flat.full.clone() for flat in model.zero.flats]
    count, steps, step = [0], [], optimizer.step

    def stepped(*args):
        comm.phase = "step"
        steps.append(count[0])
        return step(*args)

    def forward(*_):
        comm.phase = str(count[0] % G)
        count[0] += 1

    optimizer.step = stepped
    model.register_forward_pre_hook(forward)
    losses, calls, tokens = [], [], stage_runs.data(comm.rank, 2 * G)
    for batch in (tokens[:G], tokens[G:]):
        comm.calls = []
        with same_calls():
            losses.append(train_step(model, optimizer, [(x[:, :-1], x[:, 1:]) for x in batch]))
            calls.append([phase for phase, verb, _ in comm.calls if verb == "reduce_scatter"])
    left = model.zero.memory()["gradients_bytes"]
    moved = torch.cat([flat.full - before for flat, before in zip(model.zero.flats, start, strict=True)])
    return {"losses": [float(loss) if isinstance(loss, float | torch.Tensor) else None for loss in losses],
            "phases": calls, "steps": steps, "forwards": count[0], "moved": moved, "left": left}


@exercise("6.5", "Which micro-batches are reduced", minutes=20, difficulty=2, answer="train_step", timeout=15)
def train_step(lab: Lab):
    for stage in (1, 2):
        _judge_accumulation(lab, lab.run(accumulated_on_a_rank, stage, world=2), stage)
    return "stage 1 reduces once a step, stage 2 each micro-batch, and both train as on the whole batch."


def _judge_accumulation(lab, found, stage):
    case = f"stage {stage} on 2 ranks, {G} micro-batches a step"
    for rank, seen in enumerate(found):
        mine = seen["mine"]
        if mine["forwards"] != 2 * G:
            lab.wrong(f"{case}: the model ran {mine['forwards']} times in two steps, and {2 * G} times are right.")
        if len(mine["steps"]) != 2:
            lab.wrong(f"{case}: you called optimizer.step {len(mine['steps'])} times in two steps. The parameters move "
                      "once, when the gradients of all micro-batches are there.")
        if not near(mine["moved"], seen["right"]["moved"]):
            models = [
                ("summed", "You added the micro-batches up: the loss of each counts 1 / G, so that the sum is the "
                           "average."),
                ("last", "Only the last micro-batch counts: zero_grad belongs to the end of the step."),
                ("last alone", "Only the last micro-batch counts: zero_grad belongs to the end of the step."),
                ("left", "The gradients of the first step are still there in the second: call optimizer.zero_grad() "
                         "once a step."),
            ]
            why = next((why for name, why in models if near(mine["moved"], seen[name]["moved"])), "")
            lab.wrong(f"{case}: after two steps rank {rank} has other parameters than training on the whole batch "
                      f"gives. {why}".rstrip())
        wanted = seen["right"]["losses"]
        pairs = zip(mine["losses"], wanted, strict=True)
        if not all(loss is not None and abs(loss - right) < 1e-3 for loss, right in pairs):
            said = ", ".join("nothing that is a number" if loss is None else f"{loss:.4f}" for loss in mine["losses"])
            lab.wrong(f"{case}: the steps return {said}, and {', '.join(f'{loss:.4f}' for loss in wanted)} are right: "
                      "the mean loss of the micro-batches, each as if it were alone.")
        where = set(mine["phases"][1])
        if stage == 1 and "step" in where and not where - {"step"}:
            lab.wrong(f"{case}: rank {rank} reduced nothing until the step, which then had to do it all at once. Leave "
                      "the last micro-batch out of no_sync: its backward reduces the sum while it goes on.")
        if stage == 1 and where == {str(i) for i in range(G)}:
            lab.wrong(f"{case}: rank {rank} reduced every micro-batch, {G} times the traffic. Stage 1 has room for the "
                      "whole gradient: add up under model.zero.no_sync(), and reduce with the last micro-batch.")
        if stage == 2 and where != {str(i) for i in range(G)}:
            lab.wrong(f"{case}: rank {rank} reduced in {_places(where)}: each micro-batch needs a backward of its own, "
                      "before the next forward, or the activations of all are alive at once.")
        if mine["left"]:
            lab.wrong(f"{case}: after a step rank {rank} still holds {mine['left']} bytes of gradients: call "
                      "optimizer.zero_grad() at its end, and they are free until the next.")
        if stage == 1 and where != {str(G - 1)}:
            lab.wrong(f"{case}: rank {rank} reduced in {_places(where)}: the last micro-batch alone should do it, when "
                      "the sum is complete.")


def _places(phases) -> str:
    return ", ".join("the step" if phase == "step" else f"micro-batch {int(phase) + 1}" for phase in sorted(phases))
