"""AdamW in one pass over memory: 28 bytes per fp32 element instead of 80.

With p a parameter's element, g its gradient, m and v the running means of g and g², step t counted from 1:

    p = p - lr·weight_decay·p
    m = m + (1 - beta1)·(g - m)
    v = beta2·v + (1 - beta2)·g²
    p = p - lr/(1 - beta1^t) · m / (sqrt(v)/sqrt(1 - beta2^t) + eps)

Every element is updated on its own, so one program can take 4096 of them wherever they lie. It reads p, g, m and v (16
bytes) and writes p, m and v (12 bytes): that is the kernel, in `adamw_kernel`. PyTorch's single operations, in `adamw`,
write intermediate results to memory and read them again. Nothing here needs triton but FusedAdamW's default.
Source: Loshchilov and Hutter 2019 (arXiv 1711.05101), Kingma and Ba 2015 (arXiv 1412.6980).
"""

from collections.abc import Callable, Iterable, Iterator

import torch

from ..errors import BadInput


def adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, t: int, lr: float,
          betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """One step in plain PyTorch, in place, on tensors of one shape: eight operations, each through memory."""
    beta1, beta2 = betas
    p.mul_(1 - lr * weight_decay)
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2)
    v.addcmul_(g, g, value=1 - beta2)
    spread = v.sqrt()
    spread.div_((1 - beta2**t) ** 0.5)
    spread.add_(eps)
    p.addcdiv_(m, spread, value=-lr / (1 - beta1**t))


MEANS = ("exp_avg", "exp_avg_sq")  # as torch names m and v in an optimizer's state


class FusedAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW stretch by stretch: the same numbers to a few units in the last place, the same state dict.

    The means are fp32, also for parameters in half precision. Parameters that are neighbours in memory, as in a flat
    shard, and whose gradients and means are neighbours too, are updated by one call together.
    update: the function that makes the step, such as `adamw`; None: the kernel, `fused_adamw`, which needs triton.
    Raises BadInput for a parameter that is not dense, or is not on a device where the kernel can run, and without triton.
    """

    def __init__(self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, update: Callable[..., None] | None = None):
        if update is None:
            from .adamw_kernel import fused_adamw as update  # only here, so that the plain step runs without triton
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})
        self.update = update

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> object:
        """Update every parameter that has a gradient; returns what the closure returned."""
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None and param.numel()]
            self._begin([param for param in params if not self.state[param]])
            by_step: dict[int, list] = {}
            for param in params:
                state = self.state[param]
                state["step"] += 1
                rows = (param, _like(param, param.grad), state["exp_avg"], state["exp_avg_sq"])
                by_step.setdefault(int(state["step"]), []).append(tuple(map(_row, rows)))
            for t, rows in by_step.items():
                for p, g, m, v in stretches(rows):
                    self.update(p, g, m, v, t, group["lr"], group["betas"], group["eps"], group["weight_decay"])
        return result

    def load_state_dict(self, state_dict: dict) -> None:
        """Like that of any optimizer, but the means stay fp32. (torch would cast them to the parameters' dtype.)"""
        super().load_state_dict(state_dict)
        saved = [state_dict["state"].get(number) for group in state_dict["param_groups"] for number in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        loaded = [(param, state) for param, state in zip(params, saved, strict=True) if state]
        self._begin([param for param, _ in loaded])
        for param, state in loaded:
            for name in MEANS:
                self.state[param][name].copy_(state[name])

    def _begin(self, params: list[torch.Tensor]) -> None:
        """Make means of zero for these parameters, side by side, so that neighbours stay neighbours."""
        for param in params:
            if not _is_dense(param):
                raise BadInput(f"FusedAdamW walks through memory, and a parameter of shape {tuple(param.shape)} and "
                               f"strides {param.stride()} has gaps or overlaps: give it a contiguous one")
        for name in MEANS if params else ():
            row, at = torch.zeros(sum(param.numel() for param in params), device=params[0].device), 0
            for param in params:
                self.state[param].setdefault("step", torch.tensor(0.0))
                self.state[param][name] = row.as_strided(param.shape, param.stride(), at)
                at += param.numel()


def stretches(rows: list[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Join neighbours. An entry is a few 1-D tensors of one length; entries whose tensors all continue become one."""
    start = 0
    for index in range(1, len(rows) + 1):
        if index < len(rows) and all(map(_continues, rows[index - 1], rows[index])):
            continue
        n = sum(entry[0].numel() for entry in rows[start:index])
        yield tuple(tensor.as_strided((n,), (1,)) for tensor in rows[start])
        start = index


def _continues(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether `after` begins in memory where `before` ends, in the same storage."""
    return (before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr() and before.dtype == after.dtype
            and before.data_ptr() + before.nbytes == after.data_ptr())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _like(param: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient with its elements in the parameter's order in memory."""
    if gradient.is_sparse:
        raise BadInput("FusedAdamW needs dense gradients: build the embedding with sparse=False")
    if gradient.stride() == param.stride():
        return gradient
    return torch.empty_like(param, dtype=gradient.dtype).copy_(gradient)


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,))
