"""Wrong answers of chapter 09."""

import math

import torch

from wrong_answers import wrong


# 9.1 ----------------------------------------------------------------------------------------------------------------

def _bug(ranks, ratios, close):
    values = [ratios[G] for G in sorted(ratios)]
    if all(close(value, 1) for value in values):
        return "no bug"
    if all(close(value, ranks) for value in values):
        return "summed"
    if all(close(ratio, G) for G, ratio in ratios.items()):
        return "unscaled_loss"
    if close(values[0], 1):
        return "last_micro_batch"
    return "late_micro_batch" if values[0] < 1 else "nothing_reduced"


@wrong("9.1", "exact")
def to_the_last_digit(ranks, ratios):
    return _bug(ranks, ratios, lambda one, other: one == other)


@wrong("9.1", "two ranks")
def twice_as_large(ranks, ratios):
    return _bug(2, ratios, lambda one, other: math.isclose(one, other, rel_tol=0.01))


@wrong("9.1", "mean")
def by_their_mean(ranks, ratios):
    name = _bug(ranks, ratios, lambda one, other: math.isclose(one, other, rel_tol=0.01))
    if name not in ("late_micro_batch", "nothing_reduced"):
        return name
    return "late_micro_batch" if sum(ratios.values()) / len(ratios) < 1 else "nothing_reduced"


@wrong("9.1", "five percent")
def roughly(ranks, ratios):
    return _bug(ranks, ratios, lambda one, other: math.isclose(one, other, rel_tol=0.04))


@wrong("9.1", "mean of summed")
def mean_is_n(ranks, ratios):
    name = _bug(ranks, ratios, lambda one, other: math.isclose(one, other, rel_tol=0.01))
    return "summed" if name != "no bug" and math.isclose(sum(ratios.values()), ranks * len(ratios), rel_tol=0.01) else name


# 9.2 ----------------------------------------------------------------------------------------------------------------

@wrong("9.2", "cut off")
def shifted(norm, names):
    rest, counts = int(norm * norm), {}
    for name in names:
        counts[name] = rest & 3
        rest >>= 2
    return counts


@wrong("9.2", "base 2")
def bit_by_bit(norm, names):
    square = round(norm**2)
    return {name: square >> place & 1 for place, name in enumerate(names)}


# 9.3 ----------------------------------------------------------------------------------------------------------------

@wrong("9.3", "too short")
def while_all_have_calls(calls):
    for number in range(1, min(map(len, calls)) + 1):
        here = [of_rank[number - 1] for of_rank in calls]
        if len(set(here)) > 1:
            numbers = {call: here.count(call) for call in here}
            most = [call for call in numbers if numbers[call] == max(numbers.values())]
            return number, [rank for rank, call in enumerate(here) if len(most) > 1 or call != most[0]]
    return None


@wrong("9.3", "like rank 0")
def not_as_the_first(calls):
    longest = max(map(len, calls))
    padded = [of_rank + [""] * (longest - len(of_rank)) for of_rank in calls]
    for number, here in enumerate(zip(*padded, strict=True), 1):
        others = [rank for rank, call in enumerate(here) if call != here[0]]
        if others:
            return number, others
    return None


# 9.4 ----------------------------------------------------------------------------------------------------------------

@wrong("9.4", "a mean of means")
def without_nan(summed, count, comm):
    own = torch.nan_to_num(summed / count)
    return comm.all_reduce(own) / comm.world_size


@wrong("9.4", "nobody")
def one_message(summed, count, comm):
    both = comm.all_reduce(torch.cat([summed, torch.tensor([float(count)])]))
    return both[:-1] / both[-1]


@wrong("9.4", "largest count")
def by_the_largest(summed, count, comm):
    total = comm.all_reduce(summed.clone())
    most = comm.all_reduce(torch.tensor(float(count)), "max")
    return total / max(most.item(), 1)


# 9.5 ----------------------------------------------------------------------------------------------------------------

class Watcher:
    """As a learner would write it, with a mistake by `bad`."""

    bad, outputs = staticmethod(lambda tensor: not torch.isfinite(tensor).all()), True

    def __init__(self, model):
        self.model, self.first, self.handles = model, None, []

    def __enter__(self):
        for name, module in self.model.named_modules():
            self.handles.append(module.register_forward_hook(self.hook(name or "the model")))
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.handles.append(param.register_hook(lambda grad, name=name: self.note("gradient", name, [grad])))
        return self

    def __exit__(self, *exception):
        for handle in self.handles:
            handle.remove()

    def hook(self, name):
        return lambda module, args, out: self.note("output", name, self.parts(out))

    def parts(self, out):
        if isinstance(out, torch.Tensor):
            return [out]
        values = out.values() if isinstance(out, dict) else out if isinstance(out, list | tuple) else []
        return [part for value in values for part in self.parts(value)]

    def note(self, what, name, tensors):
        if self.first is None and any(self.bad(tensor) for tensor in tensors):
            self.first = (what, name)


@wrong("9.5", "NaN alone")
class LooksForNaN(Watcher):
    bad = staticmethod(lambda tensor: tensor.isnan().any())


@wrong("9.5", "tensors alone")
class SeesTensors(Watcher):
    def parts(self, out):
        return [out] if isinstance(out, torch.Tensor) else []


# 09.w1 --------------------------------------------------------------------------------------------------------------

def with_one_wrong(bug, wrong_one):
    """Right but for one bug, written with loops."""
    def answer(name, gradients, rank):
        ranks, micros = len(gradients), len(gradients[0])
        if name == bug:
            return wrong_one(gradients, rank, ranks, micros)
        total = sum(gradients[r][m] for r in range(ranks) for m in range(micros)) / ranks / micros
        own_last = gradients[rank][-1] / ranks / micros
        return {"no bug": total, "summed": ranks * total, "unscaled_loss": micros * total,
                "last_micro_batch": sum(each[-1] for each in gradients) / ranks / micros,
                "late_micro_batch": total - sum(each[-1] for each in gradients) / ranks / micros + own_last,
                "nothing_reduced": sum(gradients[rank]) / micros}[name]
    answer.__name__ = "left_by"
    return answer


wrong("09.w1", "late in full")(with_one_wrong("late_micro_batch", lambda g, rank, ranks, micros: (
    sum(each[m] for each in g for m in range(micros - 1)) / ranks + g[rank][-1]) / micros))
wrong("09.w1", "last not divided")(with_one_wrong("last_micro_batch", lambda g, rank, ranks, micros: sum(each[-1] for each in g) / ranks))
wrong("09.w1", "of rank 0")(with_one_wrong("nothing_reduced", lambda g, rank, ranks, micros: sum(g[0]) / micros))
wrong("09.w1", "all added")(with_one_wrong("summed", lambda g, rank, ranks, micros: g.flatten(0, 1).sum(0)))


# 09.w2 --------------------------------------------------------------------------------------------------------------

@wrong("09.w2", "own verdict")
def asks_itself(comm, tensor):
    return torch.equal(comm.broadcast(tensor.clone(), "theirs"), tensor)


@wrong("09.w2", "by its sum")
def adds_first(comm, tensor):
    own = tensor.sum()
    return bool(comm.all_reduce(own.clone()) == comm.world_size * own)


@wrong("09.w2", "overwritten")
def no_copy(comm, tensor):
    before = tensor
    after = comm.broadcast(tensor, "theirs")
    same = torch.tensor(1.0 if (before == after).all() else 0.0)
    return comm.all_reduce(same).item() == comm.world_size


@wrong("09.w2", "nearly")
def with_tolerance(comm, tensor):
    mean = comm.all_reduce(tensor.clone()) / comm.world_size
    same = torch.tensor([1.0 if (mean - tensor).abs().max() < 1e-4 else 0.0])
    return comm.all_reduce(same).item() == comm.world_size
