"""Wrong answers of chapter 11."""

import math

import torch
from wrong_answers import wrong

from zerocourse.engine.config import Config
from zerocourse.engine.config.explain import counts
from zerocourse.models.gpt2 import find_config


# 11.1 ---------------------------------------------------------------------------------------------------------------

@wrong("11.1", "rounded")
def whole_numbers_only(train, micro, steps, ranks):
    if not (train or micro):
        raise ValueError("no batch")
    if train and micro and steps and train != micro * steps * ranks:
        raise ValueError("they do not fit")
    if not train:
        train = micro * (steps or 1) * ranks
    if not micro:
        micro = train // ranks // (steps or 1)
    return train, micro, train // micro // ranks


@wrong("11.1", "not compared")
def the_batch_wins(train, micro, steps, ranks):
    if train is None:
        if micro is None:
            raise ValueError
        train = micro * (steps or 1) * ranks
    if micro is None:
        micro, rest = divmod(train, (steps or 1) * ranks)
    else:
        steps, rest = divmod(train, micro * ranks)
    if rest:
        raise ValueError
    return train, micro, steps or 1


# 11.2 ---------------------------------------------------------------------------------------------------------------

@wrong("11.2", "short warm-up")
def as_long_as_it_says(count, total, warmup, low, high, kind):
    if count < 0:
        return low
    if count < warmup:
        share = count / warmup if kind == "linear" else math.log(count + 1, max(warmup, 2))
    else:
        share = max(0, (total - count) / max(total - warmup, 1))
    return low + share * (high - low)


@wrong("11.2", "from zero")
def a_share_of_the_highest(count, total, warmup, low, high, kind):
    warmup = max(warmup, 2)
    if count < 0:
        return low
    if count < warmup:
        return high * (math.log(1 + count) / math.log(warmup) if kind == "log" else count / warmup)
    return max(0.0, high * (total - count) / max(1, total - warmup))


@wrong("11.2", "before the first step")
def forgotten_in_the_straight_rise(count, total, warmup, low, high, kind):
    warmup = max(warmup, 2)
    if count >= warmup:
        share = max(0.0, (total - count) / max(1, total - warmup))
    elif kind == "log":
        share = math.log(max(count, 0) + 1) / math.log(warmup)
    else:
        share = count / warmup
    return low + (high - low) * share


# 11.3 ---------------------------------------------------------------------------------------------------------------

@wrong("11.3", "divided twice")
def told_as_it_was(engine, batches):
    losses, G = [], engine.gradient_accumulation_steps()
    for number, (x, y) in enumerate(batches):
        engine.set_gradient_accumulation_boundary(number % G == G - 1 or number == len(batches) - 1)
        loss = engine(x, y) / G
        engine.backward(loss)
        engine.step()
        losses.append(loss.item() * G)
    return losses


@wrong("11.3", "schedule twice")
def with_its_own_schedule(engine, batches):
    losses = []
    for x, y in batches:
        if len(losses) == len(batches) - 1:
            engine.set_gradient_accumulation_boundary(True)
        last = engine.is_gradient_accumulation_boundary()
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        if last:
            engine.lr_scheduler.step()
        losses.append(float(loss.detach()))
    return losses


@wrong("11.3", "other lines")
def at_the_boundary_only(engine, batches):
    losses = []
    for x, y in batches:
        loss = engine(x, y)
        engine.backward(loss)
        losses.append(loss.item())
        if engine.is_gradient_accumulation_boundary():
            engine.step()
    return losses


@wrong("11.3", "never a boundary")
def false_for_the_others(engine, batches):
    losses = []
    for number, (x, y) in enumerate(batches):
        engine.set_gradient_accumulation_boundary(number == len(batches) - 1)
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@wrong("11.3", "window forgotten")
def clears_by_the_engine(engine, batches):
    losses = []
    for number, (x, y) in enumerate(batches, 1):
        loss = engine(x, y)
        engine.zero_grad()
        if number == len(batches):
            engine.set_gradient_accumulation_boundary(True)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@wrong("11.3", "tensors")
def losses_as_they_come(engine, batches):
    losses = []
    for number, (x, y) in enumerate(batches):
        if number == len(batches) - 1:
            engine.set_gradient_accumulation_boundary(True)
        losses.append(engine(x, y))
        engine.backward(losses[-1])
        engine.step()
    return losses


# 11.4 ---------------------------------------------------------------------------------------------------------------

MEANT = {"train_batch_size": 64, "gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": 4,
         "bf16": {"enabled": True}, "fp16": {"enabled": False}, "zero_optimization": {"stage": 2}, "steps_per_print": 10,
         "optimizer": {"type": "AdamW", "params": {"lr": 0.0003, "weight_decay": 0.1}},
         "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 100, "total_num_steps": 1000}}}


@wrong("11.4", "rate of the optimizer")
def nothing_to_complain_about():
    return MEANT | {"gradient_clipping": 0.5}


@wrong("11.4", "clipping lost")
def what_is_unknown_goes():
    schedule = {"type": "WarmupDecayLR",
                "params": {"warmup_num_steps": 100, "total_num_steps": 1000, "warmup_max_lr": 0.0003, "warmup_min_lr": 0}}
    return MEANT | {"scheduler": schedule}


@wrong("11.4", "does not fall to 0")
def one_rate_everywhere():
    schedule = {"warmup_min_lr": 3e-4, "warmup_max_lr": 3e-4, "warmup_num_steps": 100, "total_num_steps": 1000}
    return {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.5, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupDecayLR", "params": schedule}}


# 11.5 ---------------------------------------------------------------------------------------------------------------

class Loop:
    def __init__(self, model, optimizer, scheduler, accumulation, clipping):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.G, self.clipping, self.left = accumulation, clipping, accumulation
        self.global_steps, self.norm = 0, None

    def __call__(self, *inputs):
        return self.model(*inputs)

    def is_boundary(self):
        return self.left == 1

    def close_window(self):
        self.left = 1

    def backward(self, loss):
        loss.div(self.G).backward()

    def step(self):
        self.left -= 1
        if self.left == 0:
            self.norm = torch.cat([each.grad.flatten() for each in self.model.parameters()]).norm().item()
            if self.clipping and self.norm > self.clipping:
                for each in self.model.parameters():
                    each.grad *= self.clipping / self.norm
            self.optimizer.step()
            self.model.zero_grad()
            self.scheduler.step()
            self.global_steps, self.left = self.global_steps + 1, self.G


wrong("11.5", "short window")(Loop)


@wrong("11.5", "last alone")
class FreshGradients(Loop):
    def backward(self, loss):
        self.optimizer.zero_grad()
        super().backward(loss)


class Averaged(Loop):
    """Right, but for what derives from it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.count = 0

    def step(self):
        self.count += 1
        if self.left == 1:
            for each in self.model.parameters():
                each.grad *= self.G / self.count
            self.count = 0
        super().step()


@wrong("11.5", "decided in backward")
class DecidedTooEarly(Averaged):
    def backward(self, loss):
        super().backward(loss)
        self.left_then = self.left

    def step(self):
        said, self.left = self.left != self.left_then, self.left_then
        super().step()
        self.left = 1 if said else self.left


@wrong("11.5", "counts micro-batches")
class CountsAll(Averaged):
    def step(self):
        steps = self.global_steps
        super().step()
        self.global_steps = steps + 1


# 11.6 ---------------------------------------------------------------------------------------------------------------

def _best(model, ranks, batch, fits, key, micros=(1, 2, 4, 8, 16)):
    found = []
    for stage in range(4):
        for micro in micros:
            for made in (True, False):
                if batch % (micro * ranks) == 0:
                    config = Config.load({"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro, "bf16": {"enabled": True},
                                          "zero_optimization": {"stage": stage}, "activation_checkpointing": {"enabled": made}}, ranks)
                    here = counts(config, find_config(model), ranks)
                    if fits(here):
                        found.append((key(here, made, micro), stage, micro, made, here["sent_bytes"]))
    _, stage, micro, made, sent = min(found)
    return {"stage": stage, "micro_batch": micro, "checkpointing": made, "sent_bytes": sent}


@wrong("11.6", "least memory")
def the_smallest(model, ranks, card_bytes, batch):
    return _best(model, ranks, batch, lambda here: True, lambda here, made, micro: (here["peak_bytes"], here["sent_bytes"]))


@wrong("11.6", "only the states")
def by_the_states(model, ranks, card_bytes, batch):
    return _best(model, ranks, batch, lambda here: here["total_bytes"] <= card_bytes,
                 lambda here, made, micro: (here["sent_bytes"], made, -micro, here["peak_bytes"]))


@wrong("11.6", "small micro-batches")
def eight_at_most(model, ranks, card_bytes, batch):
    return _best(model, ranks, batch, lambda here: here["peak_bytes"] <= card_bytes,
                 lambda here, made, micro: (here["sent_bytes"], made, -micro, here["peak_bytes"]), micros=(1, 2, 4, 8))


# 11.w1 --------------------------------------------------------------------------------------------------------------

def averaged(engine, loss):
    loss.div(engine.accumulation).backward()


@wrong("11.w1", "not divided")
class SumsUp:
    def engine_backward(engine, loss):
        loss.backward()

    def engine_step(engine):
        engine.micro_steps += 1
        if not engine.micro_steps % engine.accumulation:
            engine.optimizer.step(), engine.optimizer.zero_grad(), engine.scheduler.step()
            engine.global_steps += 1


@wrong("11.w1", "schedule each time")
class ScheduleOfMicroBatches:
    engine_backward = averaged

    def engine_step(engine):
        engine.micro_steps += 1
        if engine.micro_steps % engine.accumulation == 0:
            engine.optimizer.step()
            engine.optimizer.zero_grad()
            engine.global_steps = engine.micro_steps // engine.accumulation
        engine.scheduler.step()


@wrong("11.w1", "early")
class AsksBeforeItCounts:
    engine_backward = averaged

    def engine_step(engine):
        full = engine.micro_steps % engine.accumulation == 0
        engine.micro_steps += 1
        if full:
            engine.optimizer.step()
            engine.optimizer.zero_grad()
            engine.scheduler.step()
            engine.global_steps += 1


@wrong("11.w1", "never cleared")
class NothingIsCleared:
    engine_backward = averaged

    def engine_step(engine):
        engine.micro_steps += 1
        if engine.micro_steps % engine.accumulation:
            return
        engine.optimizer.step()
        engine.scheduler.step()
        engine.global_steps += 1


# 11.w2 --------------------------------------------------------------------------------------------------------------

@wrong("11.w2", "stretched")
def always_to_the_limit(stage, limit):
    norm = stage.grad_norm()
    if limit:
        stage.scale_gradients(limit / (norm + 1e-6))
    return norm


@wrong("11.w2", "zero clips")
def by_torch_clamp(stage, limit):
    norm = stage.grad_norm()
    stage.scale_gradients((limit / (norm + 1e-6)).clamp(max=1))
    return norm


@wrong("11.w2", "not in proportion")
def to_length_one(stage, limit):
    norm = stage.grad_norm()
    if limit > 0 and norm > limit:
        stage.scale_gradients(1.0 / (norm + 1e-6))
    return norm


@wrong("11.w2", "norm after")
def asks_again(stage, limit):
    norm = stage.grad_norm()
    if limit and norm > limit:
        stage.scale_gradients(limit / (norm + 1e-6))
    return stage.grad_norm()
