"""The check of 11.3: a loop with the habits of plain torch, which is to drive an engine on real ranks."""

import torch

from .....engine import Engine
from .....engine.config import Config
from .....engine.updates.optimizers import choose_scheduler
from .....models.gpt2 import GPT
from ....checks import Trial, exercise
from ....checks.observers.stage_probe import calling
from ....checks.observers.stage_runs import CONFIG, WatchedComm, data

G = 3
BATCHES = 7, 8  # two windows, and one micro-batch that is left, or two
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


def loop_on_a_rank(answer, batches):
    """So many micro-batches in windows of three."""
    engine, rates, norms = engine_on_a_rank()
    tokens = data(engine.global_rank, batches)
    losses = calling(answer, lambda: answer(engine, [(each[:, :-1], each[:, 1:]) for each in tokens]))
    return {"updates": len(rates), "rates": rates, "norms": norms, "rate": engine.optimizer.param_groups[0]["lr"],
            "kinds": ", ".join(sorted({type(each).__name__ for each in losses or ()})),
            "losses": [float(each) for each in losses or ()]}


def clear_optimizer(engine):
    engine.optimizer.zero_grad()


@exercise(
    "11.3", "Find the bugs: a borrowed loop", minutes=25, difficulty=2,
    replaces=("zerocourse.engine.train:step",),
    trials=[Trial([(batches,) for batches in BATCHES], loop_on_a_rank, worlds=(2, 3), close=1e-4)],
    mistakes={
        "every one a boundary": {"boundaries": lambda number, last: True},
        "never a boundary": {"boundaries": lambda number, last: number == last},
        "left open": {"boundaries": lambda number, last: None},
        "schedule each time": {"schedule": lambda boundary: True},
        "schedule twice": {"schedule": lambda boundary: boundary},
        "cleared": {"clear": clear_optimizer},
        "window forgotten": {"clear": lambda engine: engine.zero_grad()},
        "divided twice": ({"share": 1 / G}, {"share": 1 / G, "told": 1 / G}),
        "told a share": {"told": 1 / G},
        "tensors": {"item": lambda loss: loss},
        "cleared and divided": ({"clear": clear_optimizer, "share": 1 / G}, {"clear": clear_optimizer, "share": 1 / G, "told": 1 / G}),
        "optimizer's step": {"optimizer": True},
        # The last, because ranks in which an answer raised may be ended, and new ones are slow at first.
        "other lines": ({"steps": lambda boundary: boundary},
                        {"steps": lambda boundary: boundary, "boundaries": lambda number, last: None}),
    })
def train(engine, batches, *, steps=lambda boundary: True, share=1, told=1,
          boundaries=lambda number, last: True if number == last else None, schedule=lambda boundary: False, clear=lambda engine: None,
          optimizer=False, item=lambda loss: loss.item()):
    """The loop with some of its bugs. share, told: of the loss that is differentiated, and of that which is returned."""
    losses = []
    for number, (x, y) in enumerate(batches):
        clear(engine)
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
