"""The norm auditor: how often does a gradient norm count each parameter? It communicates what the audited norm does.

Over shards, replicas and groups a norm goes wrong silently: a shard is forgotten, or a parameter that several ranks
hold is counted several times. So give parameter i the gradient 2^i in one element, and 0 in all others. The square of the
norm is then the sum of c_i·4^i, where c_i says how often the parameter was counted: the digits of the square in base 4,
as long as none is above 3. (For larger counts the digits are made wider.)
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..errors import BadInput

BITS = {torch.float32: 20, torch.float64: 48}  # of the square that its roundings leave exact, with some to spare


def norm_counts(model: nn.Module, backward: Callable[[], object], norm: Callable[[], float | Tensor],
                dtype: torch.dtype = torch.float32, highest: int = 3, last: bool = False) -> dict[str, int]:
    """How often `norm` counts each trainable parameter, by name: 1 is right. Collective where `backward` or `norm` is.

    backward(): one forward and one backward of the model, which brings each parameter's gradient once.
    norm(): the 2-norm of the gradient that is there then.   dtype: in which it is computed, float32 or float64; ten or
        24 parameters are audited in one backward.   highest: the largest count that can be told from smaller ones.
    last: mark each parameter's last element, not its first. Where a parameter is cut, they lie on different ranks.
    The model's gradients are zeroed before and afterwards. Raises BadInput where a parameter's gradient does not come
    exactly once, and where the square is no whole number, so that it is no 2-norm of gradients that are averaged.
    """
    params = {name: param for name, param in model.named_parameters() if param.requires_grad and param.numel()}
    return counts_by_digits(list(params), lambda marks: marked_norm(model, params, marks, backward, norm, last), dtype,
                            highest)


def counts_by_digits(names: Sequence[str], norm_of: Callable[[dict[str, float]], float],
                     dtype: torch.dtype = torch.float32, highest: int = 3) -> dict[str, int]:
    """How often a norm counts each of `names`, read from its digits; dtype and highest as for `norm_counts`.

    norm_of(marks): the norm when one element of each marked name has its mark as gradient, and every other element of
        the model has 0. It is called once for every ten names, or fewer where counts above 3 make the digits wider.
    """
    if dtype not in BITS:
        raise BadInput(f"the counts are read from norms in float32 or float64, not {dtype}")
    digit = next(bits for bits in range(2, 64, 2) if 2**bits > highest)  # bits: an even number, because 2^i is squared
    most, counts = BITS[dtype] // digit, {}
    for start in range(0, len(names), most):
        marks = {name: 2.0 ** (digit // 2 * place) for place, name in enumerate(names[start : start + most])}
        square = norm_of(marks) ** 2
        if not math.isfinite(square) or abs(square - round(square)) > 0.25:
            raise BadInput(f"the square of the norm is {square}, where whole numbers were to be added up: norm() must "
                           "be the 2-norm of gradients that are averaged over the ranks")
        rest = round(square)
        for place, name in enumerate(marks):  # the last digit gets what is left: it has no neighbour to spill into
            counts[name] = rest >> digit * place if place == len(marks) - 1 else (rest >> digit * place) % 2**digit
    return counts


def marked_norm(model: nn.Module, params: dict[str, nn.Parameter], marks: dict[str, float],
                backward: Callable[[], object], norm: Callable[[], float | Tensor], last: bool) -> float:
    """The norm when one element of each marked parameter has its mark as gradient, and every other element has 0."""
    came: Counter = Counter()

    def mark(name: str, gradient: Tensor) -> Tensor:
        came[name] += 1
        marked = torch.zeros_like(gradient)
        marked[(-1 if last else 0,) * marked.dim()] = marks.get(name, 0.0)
        return marked

    handles = [param.register_hook(lambda gradient, name=name: mark(name, gradient)) for name, param in params.items()]
    try:
        model.zero_grad()
        backward()
        value = float(norm())
        model.zero_grad()
    finally:
        for handle in handles:
            handle.remove()
    for name in params:  # only now, so that no rank leaves before the collectives
        if came[name] != 1:
            raise BadInput(f"backward() brought the gradient of {name} {came[name]} times: one forward and backward "
                           "that use every trainable parameter bring it once")
    return value
