"""The check of 11.3: a loop with the habits of plain torch, which is to drive an engine on real ranks."""

import torch

from .....engine import Engine
from .....engine.config import Config
from .....engine.updates.optimizers import choose_scheduler
from .....models.gpt2 import GPT
from ....checks import Trial, exercise
from ....checks.observers.stage_probe import calling
from ....checks.observers.stage_runs import CONFIG, WatchedComm, data

G, BATCHES = 3, 7  # two windows, and one micro-batch that is left
FILE = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": G, "zero_optimization": {"stage": 2},
        "gradient_clipping": 0, "scheduler": {"type": "WarmupLR", "params": {
            "warmup_min_lr": 0.1, "warmup_max_lr": 0.5, "warmup_num_steps": 4, "warmup_type": "linear"}}}


def engine_on_a_rank():
    """An engine whose updates are noted in `rates` and `norms`."""
    torch.manual_seed(0)
    model, comm = GPT(CONFIG), WatchedComm(timeout=5)
    config = Config.load(FILE, comm.world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, config, comm, choose_scheduler(config, None, optimizer))
    rates, norms = [], []

    def note(*_):
        rates.append(optimizer.param_groups[0]["lr"])
        norms.append(engine.zero.grad_norm().item())

    optimizer.register_step_pre_hook(note)
    return engine, rates, norms


def loop_on_a_rank(answer):
    """Seven micro-batches in windows of three.

    case: 7 micro-batches in windows of 3 on {world} ranks
    updates: rank {rank} updated {got} times, and {want} times are right.
    rates: the learning rates of the updates on rank {rank} are {got}, and {want} are right.
    norms: the gradient's norms at the updates on rank {rank} are {got}, and {want} are right.
    kinds: what rank {rank} returned are values of the type {got}, and {want} is right.
    losses: the losses that rank {rank} returned are {got}, and {want} are right.
    """
    engine, rates, norms = engine_on_a_rank()
    tokens = data(engine.global_rank, BATCHES)
    losses = calling(answer, lambda: answer(engine, [(each[:, :-1], each[:, 1:]) for each in tokens]))
    return {"updates": len(rates), "rates": rates, "norms": norms,
            "kinds": ", ".join(sorted({type(each).__name__ for each in losses or ()})),
            "losses": [float(each) for each in losses or ()]}


@exercise(
    "11.3", "Find the bugs: a borrowed loop", minutes=25, difficulty=2,
    replaces=("zerocourse.engine.train:step",),
    trials=[Trial(observe=loop_on_a_rank, worlds=(2, 3), close=1e-4)],
    mistakes={
        "every one a boundary": {"boundaries": lambda number, last: True},
        "never a boundary": {"boundaries": lambda number, last: number == last},
        "left open": {"boundaries": lambda number, last: None},
        "schedule each time": {"schedule": lambda boundary: True},
        "schedule twice": {"schedule": lambda boundary: boundary},
        "cleared": {"cleared": True},
        "divided twice": ({"share": 1 / G}, {"share": 1 / G, "told": 1 / G}),
        "told a share": {"told": 1 / G},
        "tensors": {"item": lambda loss: loss},
        "cleared and divided": ({"cleared": True, "share": 1 / G}, {"cleared": True, "share": 1 / G, "told": 1 / G}),
        "optimizer's step": {"optimizer": True},
        # The last, because ranks in which an answer raised may be ended, and new ones are slow at first.
        "other lines": ({"steps": lambda boundary: boundary},
                        {"steps": lambda boundary: boundary, "boundaries": lambda number, last: None}),
    })
def train(engine, batches, *, steps=lambda boundary: True, share=1, told=1,
          boundaries=lambda number, last: True if number == last else None, schedule=lambda boundary: False, cleared=False,
          optimizer=False, item=lambda loss: loss.item()):
    """The loop with some of its bugs. share, told: of the loss that is differentiated, and of that which is returned.

    other lines: every micro-batch has the engine's three lines, `engine(x, y)`, `engine.backward(loss)` and
        `engine.step()`, also where nothing is
        updated, and after the data there is no step without a backward.
    every one a boundary: Every micro-batch was made a boundary: only the last one of the data closes its window early.
    never a boundary: You said False for every other micro-batch, which overrules the engine: it finds the ends of whole
        windows by itself, so say nothing but True, and only at the last.
    left open: The last window has one micro-batch, and it stayed open: the data ends there, so say that it is a boundary.
    schedule each time: You step the schedule after each micro-batch, and the engine steps it at each update.
    schedule twice: You step the schedule at each update, and the engine does so, too.
    cleared: You clear the gradients before each micro-batch, or before the last of a window, so only the last one is left.
    divided twice: You divide the loss by the number of micro-batches, and the engine divides it again.
    told a share: The loss that is returned is a share of the micro-batch's loss: return the whole one.
    tensors: A loss that is still a tensor keeps what its backward needs: return loss.item(), a number.
    cleared and divided: Two bugs are left: gradients are cleared before each micro-batch, and the loss is divided twice.
    optimizer's step: You call the optimizer's own step besides the engine's, so each update is made twice.
    right: the engine's two windows and the short one, on two and three ranks.
    """
    losses = []
    for number, (x, y) in enumerate(batches):
        if cleared:
            engine.optimizer.zero_grad()
        if (boundary := boundaries(number, len(batches) - 1)) is not None:
            engine.set_gradient_accumulation_boundary(boundary)
        loss = engine(x, y)
        engine.backward(loss * share)
        boundary = engine.is_gradient_accumulation_boundary()
        if optimizer and boundary:
            engine.optimizer.step()
        if steps(boundary):
            engine.step()
        if schedule(boundary):
            engine.lr_scheduler.step()
        losses.append(item(loss) * told)
    return losses
