"""Wrong answers of chapter 10."""

import math

import torch

from wrong_answers import wrong


# 10.1 ---------------------------------------------------------------------------------------------------------------

@wrong("10.1", "no master")
def two_averages_alone(params, stage, ranks, half, fp32_gradients):
    sizes = [4 * params, 4 * params, 8 * params]
    if half:
        sizes = [2 * params, 4 * params if fp32_gradients else 2 * params, 8 * params]
    for kind in range(3 - stage, 3):
        sizes[kind] //= ranks
    return tuple(sizes)


@wrong("10.1", "both gradients")
def wide_ones_as_well(params, stage, ranks, half, fp32_gradients):
    each = [2, 2, 12] if half else [4, 4, 8]
    if half and fp32_gradients:
        each[1] += 4
    return tuple(size * params // (ranks if stage + kind >= 3 else 1) for kind, size in enumerate(each))


# 10.2 ---------------------------------------------------------------------------------------------------------------

@wrong("10.2", "no subnormals")
def normal_numbers_alone(value, fraction, smallest_exponent):
    exponent = smallest_exponent if value == 0 else math.floor(math.log2(abs(value)))
    return 2.0**exponent / 2**fraction


@wrong("10.2", "cut off")
def with_int(value, fraction, smallest_exponent):
    exponent = int(math.log2(abs(value))) if value else smallest_exponent
    return 2.0 ** (max(exponent, smallest_exponent) - fraction)


# 10.3 ---------------------------------------------------------------------------------------------------------------

@wrong("10.3", "never back")
def left_is_forgotten(scale, good, left, overflow, window, hysteresis, minimum):
    if overflow:
        good = 0
        if left == 1:
            scale = max(minimum, scale / 2)
        left = max(1, left - 1)
    elif good + 1 == window:
        scale, good = scale * 2, 0
    else:
        good += 1
    return scale, good, left


@wrong("10.3", "late")
def asked_before_it_is_counted(scale, good, left, overflow, window, hysteresis, minimum):
    if overflow:
        return (scale, 0, left - 1) if left > 1 else (max(minimum, scale / 2), 0, left)
    if good == window:
        return scale * 2, 0, hysteresis
    return scale, good + 1, left


# 10.4 ---------------------------------------------------------------------------------------------------------------

@wrong("10.4", "own slices")
def decides_for_itself(slices, loss_scale, comm):
    if any(part.isnan().any() or part.isinf().any() for part in slices):
        return None
    return [part.to(torch.float32) / loss_scale for part in slices]


@wrong("10.4", "sum in fp16")
def by_the_sum(slices, loss_scale, comm):
    total = sum(part.abs().sum() for part in slices) if slices else torch.tensor(0.0)
    overflow = comm.all_reduce(torch.tensor(0.0 if torch.isfinite(total) else 1.0))
    return None if overflow else [part.float().div(loss_scale) for part in slices]


# 10.5 ---------------------------------------------------------------------------------------------------------------

@wrong("10.5", "from rounded")
class MastersOfRoundedWeights:
    def make_masters(params):
        half = [param.bfloat16() for param in params]
        return half, [each.float() for each in half]


@wrong("10.5", "not shown")
class NewTensorsInAName:
    def masters_step(half, masters, gradients, lr):
        for weight, master, gradient in zip(half, masters, gradients):
            master.sub_(gradient.float(), alpha=lr)
            weight = master.bfloat16()


# 10.6 ---------------------------------------------------------------------------------------------------------------

@wrong("10.6", "schedule")
def order_alone(params, optimizer, schedule, scaler, max_norm):
    for param in params:
        param.grad.div_(scaler.loss_scale)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    if norm.isfinite():
        optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    scaler.update(not norm.isfinite())


@wrong("10.6", "NaN")
def infinities_alone(params, optimizer, schedule, scaler, max_norm):
    for param in params:
        param.grad.div_(scaler.loss_scale)
    overflow = any(bool(param.grad.isinf().any()) for param in params)
    if not overflow:
        torch.nn.utils.clip_grad_norm_(params, max_norm)
        optimizer.step()
        schedule.step()
    optimizer.zero_grad()
    scaler.update(overflow)


# 10.7 ---------------------------------------------------------------------------------------------------------------

@wrong("10.7", "emulated")
def as_torch_says(capability, memory, params, ranks):
    half = {"fp16": {"enabled": True, "loss_scale": 0}} if capability < (7, 5) else {"bf16": {"enabled": True}}
    for stage, needed in enumerate((16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)):
        if needed * params <= 0.8 * memory:
            return {**half, "zero_optimization": {"stage": stage}}
    return None


@wrong("10.7", "all memory")
def to_the_last_byte(capability, memory, params, ranks):
    half = {"bf16": {"enabled": True}} if capability[0] >= 8 else {"fp16": {"enabled": True, "loss_scale": 0}}
    needed = 16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks
    fits = [stage for stage, each in enumerate(needed) if each * params <= memory]
    return {**half, "zero_optimization": {"stage": fits[0]}} if fits else None


# 10.8 ---------------------------------------------------------------------------------------------------------------

@wrong("10.8", "summed")
class Fp16SGD:
    def __init__(self, params, lr, max_norm, scale, window, comm):
        self.params, self.lr, self.max_norm = params, lr, max_norm
        self.scale, self.window, self.comm = scale, window, comm
        self.masters, self.streak = [], 0
        for param in params:
            self.masters.append(param.detach().clone())
            param.data = param.data.to(torch.float16)

    def scaled(self, loss):
        return self.scale * loss.float()

    def step(self):
        sums = [self.comm.all_reduce(param.grad.float()) for param in self.params]
        for param in self.params:
            param.grad = None
        norm = sum(each.square().sum() for each in sums).sqrt() / self.scale
        if not torch.isfinite(norm):
            self.scale, self.streak = self.scale / 2, 0
            return False
        factor = torch.clamp(self.max_norm / (norm + 1e-6), max=1.0) / self.scale
        for master, each, param in zip(self.masters, sums, self.params):
            master -= self.lr * factor * each
            param.data.copy_(master)
        self.streak += 1
        if self.streak % self.window == 0:
            self.scale *= 2
        return True


class RightFp16SGD:
    """A right one, whose parts the wrong ones below replace."""

    def __init__(self, params, lr, max_norm, scale, window, comm):
        self.params, self.lr, self.max_norm = params, lr, max_norm
        self.scale, self.window, self.good, self.comm = scale, window, 0, comm
        self.masters = [param.data.clone() for param in params]
        for param in params:
            param.data = param.data.half()

    def scaled(self, loss):
        return loss.float() * self.scale

    def averaged(self, gradient):
        return self.comm.all_reduce(gradient.float()) / self.comm.world_size

    def overflow(self, gradients):
        return not all(each.isfinite().all() for each in gradients)

    def step(self):
        gradients = [self.averaged(param.grad) for param in self.params]
        for param in self.params:
            param.grad = None
        if self.overflow(gradients):
            self.scale, self.good = self.scale / 2, 0
            return False
        norm = torch.cat([each.flatten() for each in gradients]).norm() / self.scale
        factor = torch.clamp(self.max_norm / (norm + 1e-6), max=1.0) / self.scale
        for master, each, param in zip(self.masters, gradients, self.params):
            master -= self.lr * factor * each
            param.data.copy_(master)
        self.good += 1
        if self.good == self.window:
            self.scale, self.good = 2 * self.scale, 0
        return True


@wrong("10.8", "first alone")
class LooksAtTheFirst(RightFp16SGD):
    def overflow(self, gradients):
        return not gradients[0].isfinite().all()


@wrong("10.8", "NaN")
class LooksForInfinities(RightFp16SGD):
    def overflow(self, gradients):
        return any(each.isinf().any() for each in gradients)


@wrong("10.8", "averaged in fp16")
class DividesInFp16(RightFp16SGD):
    def averaged(self, gradient):
        return self.comm.all_reduce((gradient / self.comm.world_size).float())


# 10.4 to 10.8: mistakes that were told another reason, or none ---------------------------------------------------------

@wrong("10.4", "stuck")
def leaves_before_the_collective(slices, loss_scale, comm):
    if any(not part.isfinite().all() for part in slices):
        return None
    if comm.all_reduce(torch.zeros(1), "max").item() > 0:
        return None
    return [part.float() / loss_scale for part in slices]


@wrong("10.5", "product in bf16")
class ProductInBf16:
    @staticmethod
    def make_masters(params):
        return [param.bfloat16() for param in params], [param.clone() for param in params]

    @staticmethod
    def masters_step(half, masters, gradients, lr):
        for weight, master, gradient in zip(half, masters, gradients):
            master -= lr * gradient
            weight.copy_(master)


@wrong("10.6", "unscaled around")
def divides_before_and_after(params, optimizer, schedule, scaler, max_norm):
    for param in params:
        param.grad /= scaler.loss_scale
    overflow = not torch.nn.utils.clip_grad_norm_(params, max_norm).isfinite().item()
    if not overflow:
        for param in params:
            param.grad /= scaler.loss_scale
        optimizer.step()
        schedule.step()
    optimizer.zero_grad()
    scaler.update(overflow)


@wrong("10.7", "as text")
def major_and_minor_as_text(capability, memory, params, ranks):
    new = "%d.%d" % tuple(capability) >= "8.0"
    dtype = {"bf16": {"enabled": True}} if new else {"fp16": {"enabled": True, "loss_scale": 0}}
    for stage, each in enumerate([16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks]):
        if params * each <= 0.8 * memory:
            return {**dtype, "zero_optimization": {"stage": stage}}
    return None


@wrong("10.7", "strictly less")
def less_than_four_fifths(capability, memory, params, ranks):
    dtype = {"bf16": {"enabled": True}} if capability >= (8, 0) else {"fp16": {"enabled": True, "loss_scale": 0}}
    for stage, each in enumerate([16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks]):
        if params * each < 0.8 * memory:
            return {**dtype, "zero_optimization": {"stage": stage}}
    return None


# 10.w1 --------------------------------------------------------------------------------------------------------------

@wrong("10.w1", "good kept")
def does_not_begin_anew(scale, good, overflow, window):
    if overflow:
        return scale * 0.5, good
    good += 1
    if good % window == 0:
        scale *= 2
        good = 0
    return scale, good


@wrong("10.w1", "rises on")
def counts_for_ever(scale, good, overflow, window):
    if overflow:
        return scale / 2, 0
    good += 1
    return (scale * 2 if good >= window else scale), good


@wrong("10.w1", "late")
def asks_before_it_counts(scale, good, overflow, window):
    if overflow:
        return scale / 2, 0
    if good == window:
        return scale * 2, 0
    return scale, good + 1


@wrong("10.w1", "scale alone")
def only_the_scale(scale, good, overflow, window):
    return scale / 2 if overflow else scale * 2 if good + 1 == window else scale


@wrong("10.w1", "never rises")
def only_falls(scale, good, overflow, window):
    return (scale / 2, 0) if overflow else (scale, good + 1)


# 10.w2 --------------------------------------------------------------------------------------------------------------

@wrong("10.w2", "weight alone")
def in_bf16(weight, master, update):
    weight -= update


@wrong("10.w2", "not shown")
def a_new_name(weight, master, update):
    master -= update
    weight = master.to(weight.dtype)


@wrong("10.w2", "both apart")
def twice(weight, master, update):
    for each in (weight, master):
        each -= update


@wrong("10.w2", "rounded back")
def both_the_same(weight, master, update):
    weight.copy_(master - update)
    master.copy_(weight)


@wrong("10.w2", "update in bf16")
def all_in_bf16(weight, master, update):
    master -= update.to(weight.dtype)
    weight.copy_(master)
