"""The check of 10.5: fp32 master weights for a model in bf16."""

import torch

from ....checks import Trial, Wrong, exercise

BF16, LR, STEPS = torch.bfloat16, 0.001, 24  # no power of two, with which a product in bf16 would be exact


def masters_on_a_rank(make, step):
    """A model's weights over some steps of SGD."""
    seed = torch.Generator().manual_seed(10)
    given = [torch.tensor([1.0, 1.003, -0.7, 0.1]), torch.randn(3, generator=seed)]
    made = make([param.clone() for param in given])
    if not isinstance(made, tuple) or len(made) != 2 or not all(map(torch.is_tensor, [*made[0], *made[1]])):
        raise Wrong("`make_masters` must return two lists of tensors: the weights in bf16, and the masters")
    half, masters = made
    kept = list(half)
    seen = {"half": [each.double() for each in half],
            "dtypes": [str(each.dtype).removeprefix("torch.") for each in (*half, *masters)],
            "masters": [each.double() for each in masters], "shared": _shared(make, given)}
    spoiled = 0
    for number in range(1, STEPS + 1):
        gradients = [torch.rand(len(param), generator=seed).to(BF16) for param in given]
        before = [gradient.clone() for gradient in gradients]
        step(half, masters, gradients, LR)
        spoiled += not all(map(torch.equal, gradients, before))
        if number in (1, STEPS):
            name = f"step {number}"
            seen[f"after {name}"] = torch.cat([each.double().flatten() for each in masters])
            seen["replaced"] = any(each is not old for each, old in zip(half, kept, strict=True))
            seen[f"shown {name}"] = torch.cat([each.double().flatten() for each in kept])
    return {**seen, "spoiled": spoiled}


def _shared(make, given) -> bool:
    params = [param.clone() for param in given]
    _, masters = make(params)
    addresses = {param.untyped_storage()._cdata for param in params}
    return any(master.untyped_storage()._cdata in addresses for master in masters)


def subtract(master, gradient, lr):
    master -= lr * gradient.float()


def show(half, number, master):
    half[number].copy_(master)


def replaced(half, number, master):
    half[number] = master.to(BF16)


def rounded_back(half, number, master):
    half[number].copy_(master)
    master.copy_(half[number])


def on_halves(half, masters, gradients, lr):
    for each, gradient in zip(half, gradients, strict=True):
        each -= lr * gradient


def on_both(half, masters, gradients, lr):
    on_halves(half, masters, gradients, lr)
    on_halves(masters, half, [gradient.float() for gradient in gradients], lr)


def from_halves(half, masters, gradients, lr):
    for each, master, gradient in zip(half, masters, gradients, strict=True):
        master.copy_(each.float() - lr * gradient.float())
        each.copy_(master)


def to_a_name(half, masters, gradients, lr):
    for each, master, gradient in zip(half, masters, gradients, strict=True):
        each.copy_(master - lr * gradient.float())


@exercise(
    "10.5", "Master weights", minutes=20, difficulty=2, answer=("make_masters", "masters_step"), timeout=10,
    trials=[Trial(observe=masters_on_a_rank, close=1e-6)],
    mistakes={
        "from rounded": {"master_of": lambda param, half: half.float()},
        "no copy": {"master_of": lambda param, half: param},
        "masters in bf16": {"master_of": lambda param, half: half.clone()},
        "fp16": {"dtype": torch.float16},
        "halves stepped": {"whole_step": on_halves},
        "both apart": {"whole_step": on_both},
        "from the weight": {"whole_step": from_halves},
        "new name": {"whole_step": to_a_name},
        "product in bf16": {"update": lambda master, gradient, lr: master.sub_(lr * gradient)},
        "not shown": {"publish": lambda half, number, master: None},
        "new tensors": {"publish": replaced},
        "rounded in each step": {"publish": rounded_back},
        "uphill": {"update": lambda master, gradient, lr: master.add_(lr * gradient.float())},
        "no rate": {"update": lambda master, gradient, lr: master.sub_(gradient.float())},
        "gradients spoiled": {"update": lambda master, gradient, lr: master.sub_(gradient.mul_(lr).float())},
    })
def make_and_step(*, master_of=lambda param, half: param.clone(), dtype=BF16, update=subtract, publish=show,
                  whole_step=None):
    """Both functions."""
    def make_masters(params):
        half = [param.to(dtype) for param in params]
        return half, [master_of(*pair) for pair in zip(params, half, strict=True)]

    def masters_step(half, masters, gradients, lr):
        for number, (master, gradient) in enumerate(zip(masters, gradients, strict=True)):
            update(master, gradient, lr)
            publish(half, number, master)

    return make_masters, whole_step or masters_step
