"""The check of 12.w1, which chapter 12 asks for itself: a save and a resume."""

import copy
import tempfile
from pathlib import Path

import torch
from torch import nn

from ....checks import Trial, Wrong, exercise


def save(training, file):
    """Write into `file` all that this rank needs to go on as if nothing had happened.

    training: has
        `masters`, a list of this rank's slices of the fp32 master weights;
        `optimizer`, `scheduler`, and `stream`, from which the samples come, each
            with a `state_dict()` and a `load_state_dict(state)`;
        `steps_done`, a number;
        `publish()`, by which the bf16 parameters become the rounded master weights.
    Dropout draws from torch's own random numbers: `torch.get_rng_state()`.
    """
    torch.save({"masters": training.masters,
                "optimizer": training.optimizer.state_dict(),
                "scheduler": training.scheduler.state_dict(),
                "stream": training.stream.state_dict(),
                "random": torch.get_rng_state(),
                "steps": training.steps_done}, file)


def resume(training, file):
    """Bring a new training, which was built in the same way, to where `save` was called."""
    saved = torch.load(file)
    with torch.no_grad():
        for mine, old in zip(training.masters, saved["masters"]):
            mine.copy_(old)
    training.publish()
    training.optimizer.load_state_dict(saved["optimizer"])
    training.scheduler.load_state_dict(saved["scheduler"])
    training.stream.load_state_dict(saved["stream"])
    torch.set_rng_state(saved["random"])
    training.steps_done = saved["steps"]


class Numbers:
    """A stream of samples that knows how many it has given."""

    def __init__(self):
        self.given = 0

    def __next__(self):
        self.given += 1
        return torch.randn(4, 6, generator=torch.Generator().manual_seed(self.given))

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class SmallTraining:
    """A model in bf16 with fp32 master weights, on one rank."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.masters = [param.detach().clone() for param in self.model.parameters()]
        self.model.bfloat16()
        self.optimizer = torch.optim.AdamW(self.masters, lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)
        self.stream, self.steps_done = Numbers(), 0

    @torch.no_grad()
    def publish(self):
        for param, master in zip(self.model.parameters(), self.masters, strict=True):
            param.copy_(master)

    def steps(self, count):
        losses = []
        for _ in range(count):
            x = next(self.stream)
            loss = (self.model(x.bfloat16()).float() - x.sum(1, keepdim=True)).square().mean()
            self.model.zero_grad()
            loss.backward()
            for param, master in zip(self.model.parameters(), self.masters, strict=True):
                master.grad = param.grad.float()
            self.optimizer.step()
            self.scheduler.step()
            self.publish()
            self.steps_done += 1
            losses.append(round(loss.item(), 6))
        return losses

    def all_of_it(self):
        return copy.deepcopy({"masters": self.masters, "averages": self.optimizer.state_dict()["state"], "schedule": self.scheduler.state_dict(),
                              "rate": self.optimizer.param_groups[0]["lr"], "samples": self.stream.given, "random": torch.get_rng_state(),
                              "steps": self.steps_done, "parameters": list(self.model.parameters())})


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def went_on(save, resume, steps):
    """What a new training has after the resume, and its losses."""
    training = SmallTraining(1)
    training.steps(steps)
    before = training.all_of_it()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rank0.pt")
        save(training, file)
        untouched = same(before, training.all_of_it())
        if not file.exists():
            raise Wrong("`save` has written no file of the name that it was given")
        training.steps(2)  # what was saved must not change by it
        other = SmallTraining(2)
        torch.manual_seed(99)  # a new process
        resume(other, file)
    now = other.all_of_it()
    seen = {name: same(before[name], now[name]) for name in before}
    torch.set_rng_state(before["random"])
    return {"untouched": untouched, **seen, "losses": other.steps(2)}


@exercise(
    "12.w1", "Save and resume", minutes=14, difficulty=2, answer=("save", "resume"), own=(save, resume),
    trials=[Trial([(1,), (3,)], went_on, close=1e-5)],
    mistakes={
        "no masters": {"leave": ("masters",)},
        "rounded masters": {"masters": lambda training: [master.bfloat16() for master in training.masters]},
        "list replaced": {"copies": False},
        "not published": ({"publishes": "never"}, {"publishes": "first"}),
        "no optimizer": {"leave": ("optimizer",)},
        "no scheduler": {"leave": ("scheduler",)},
        "no stream": {"leave": ("stream",)},
        "no random": {"leave": ("random",)},
        "no steps": {"leave": ("steps",)},
        "drawn": {"after": lambda: torch.rand(1)},
    })
def saving(*, leave=(), masters=lambda training: training.masters, publishes="then", copies=True, after=lambda: None):
    """The two right functions."""
    def write(training, file):
        torch.save({"masters": masters(training), **{name: getattr(training, name).state_dict() for name in ("optimizer", "scheduler", "stream")},
                    "random": torch.get_rng_state(), "steps": training.steps_done}, file)
        after()

    def read(training, file):
        saved = torch.load(file)
        if publishes == "first":
            training.publish()
        if not copies:
            training.masters = saved["masters"]
        elif "masters" not in leave:
            for mine, old in zip(training.masters, saved["masters"], strict=True):
                mine.copy_(old)
        if publishes == "then":
            training.publish()
        for name in ("optimizer", "scheduler", "stream"):
            if name not in leave:
                getattr(training, name).load_state_dict(saved[name])
        if "random" not in leave:
            torch.set_rng_state(saved["random"])
        if "steps" not in leave:
            training.steps_done = saved["steps"]

    return write, read
