"""The checks of what chapter 14 asks for itself: 14.w1, a step on the host, and 14.w2, pieces that go through several hands."""

import torch

from ....checks import Trial, exercise

HALF = torch.bfloat16

# 14.w1 ----------------------------------------------------------------------------------------------------------------

def host_step(link, params, masters, optimizer):
    """One step of an optimizer that lives on the host, with the fewest bytes over the link.

    link: `link.down(tensor)` returns a copy of a device's tensor on the host,
        `link.up(tensor)` a copy of a host's tensor on the device, both of the same dtype.
        Nothing else may go from one memory to the other.
    params: the model's parameters, bf16 tensors on the device. The gradient of each is in
        `.grad`, in bf16. The model holds these tensors, so write into them, with `copy_`.
    masters: the same weights in fp32, on the host, in the same order.
    optimizer: updates the masters from the fp32 gradients that it finds in their `.grad`.
    """
    for param, master in zip(params, masters):
        master.grad = link.down(param.grad).float()
    optimizer.step()
    for param, master in zip(params, masters):
        param.data.copy_(link.up(master.detach().bfloat16()))


class CountedLink:
    """Copies, whose bytes are added up."""

    def __init__(self):
        self.down_bytes = self.up_bytes = 0

    def down(self, tensor):
        self.down_bytes += tensor.nbytes
        return tensor.detach().clone()

    def up(self, tensor):
        self.up_bytes += tensor.nbytes
        return tensor.detach().clone()


def steps_on_host(answer, sizes, steps):
    """Some steps of AdamW, whose gradients are drawn anew for each."""
    draw = torch.Generator().manual_seed(3)
    masters = [torch.randn(size, generator=draw) for size in sizes]
    params = [torch.nn.Parameter(master.to(HALF)) for master in masters]
    places = [param.data_ptr() for param in params]
    link, optimizer = CountedLink(), torch.optim.AdamW(masters, lr=0.01)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=draw).to(HALF)
        answer(link, params, masters, optimizer)
    elements = steps * sum(param.numel() for param in params)
    return {"masters": torch.cat([master.detach().flatten() for master in masters]),
            "weights": torch.cat([param.detach().flatten() for param in params]).float(),
            "same": [param.data_ptr() for param in params] == places,
            "down": link.down_bytes / elements, "up": link.up_bytes / elements}


@exercise(
    "14.w1", "A step on the host", minutes=12, difficulty=2, answer="host_step", own=host_step,
    trials=[Trial([([5, 7], 3), ([(4, 6)], 2)], steps_on_host, close=1e-6)],
    mistakes={
        "fp32 down": {"before": torch.Tensor.float},
        "fp32 up": {"ready": lambda master: master},
        "not down": {"fetch": lambda link, gradient: gradient},
        "not up": {"bring": lambda link, master: master},
        "no step": {"update": lambda optimizer: None},
        "twice": {"update": lambda optimizer: (optimizer.step(), optimizer.step())},
        "not shown": {"show": lambda param, arrived: None},
        "another tensor": {"show": lambda param, arrived: setattr(param, "data", arrived.to(HALF))},
    })
def on_host(link, params, masters, optimizer, *, before=lambda gradient: gradient, after=torch.Tensor.float,
            ready=lambda master: master.to(HALF), fetch=lambda link, gradient: link.down(gradient),
            bring=lambda link, master: link.up(master),
            update=lambda optimizer: optimizer.step(), show=lambda param, arrived: param.data.copy_(arrived)):
    """The right step."""
    for param, master in zip(params, masters, strict=True):
        master.grad = after(fetch(link, before(param.grad)))
    update(optimizer)
    for param, master in zip(params, masters, strict=True):
        show(param, bring(link, ready(master.detach())))


# 14.w2 ----------------------------------------------------------------------------------------------------------------

def pass_through(ready, hands):
    """When each piece has gone through all hands.

    ready: when each piece may begin, in the order in which they are worked on.
    hands: how long each hand takes for a piece, in the order in which a piece passes them.
        A hand works on one piece at a time, and on the pieces in their order.
    Returns a list of the ends, one for each piece.
    """
    free, ends = [0] * len(hands), []
    for moment in ready:
        for number, takes in enumerate(hands):
            moment = free[number] = max(moment, free[number]) + takes
        ends.append(moment)
    return ends


LINES = [([0, 0, 0], [3, 10, 3]), ([50, 60, 70], [10]), ([0, 5, 100], [4, 2, 9]), ([7], [1, 1]), ([10, 10], [2, 8, 5])]


def sped(ready, hands, *, begins=lambda moment, own, other: max(moment, own), keeps=True):
    free, ends = [0] * len(hands), []
    for moment in ready:
        for number, takes in enumerate(hands):
            moment = begins(moment, free[number], max(free)) + takes
            if keeps:
                free[number] = moment
        ends.append(moment)
    return ends


@exercise(
    "14.w2", "Through several hands", minutes=10, difficulty=2, answer="pass_through", own=pass_through, cases=LINES,
    mistakes={
        "no queue": {"keeps": False},
        "one at a time": {"begins": lambda moment, own, other: max(moment, other)},
        "not ready": {"begins": lambda moment, own, other: own},
        "added": {"begins": lambda moment, own, other: moment + own},
        "the last alone": lambda ready, hands: sped(ready, hands)[-1],
        "slowest hand alone": lambda ready, hands: sped(ready, [max(hands)]),
    })
def passing(ready, hands, **how):
    """The right ends."""
    return sped(ready, hands, **how)
