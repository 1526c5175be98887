"""What the checks of 7.4 and 7.6 look at: memory that comes and goes, and hooks."""

import copy
import warnings

import torch
from torch import nn

from ..lab import Lab

# 7.4 memory that comes and goes ---------------------------------------------------------------------------------------

def see_storage(free, allocate) -> list[dict]:
    """For buffers of several dtypes: a view, and a weight that autograd saved, over free, allocate, and new numbers."""
    seen = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        full = torch.arange(12).to(dtype)
        view, storage = full[2:8], full.untyped_storage()
        found = {"dtype": dtype, "wanted": storage.nbytes()}
        if dtype is torch.float32:
            weight = nn.Parameter(torch.empty(0))
            weight.data = full[:6].view(2, 3)
            x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            out = (x @ weight).sum()
        free(full)
        found |= {"freed": storage.nbytes(), "shape": tuple(full.shape),
                  "moved": full.untyped_storage()._cdata != storage._cdata}
        if not found["freed"]:
            allocate(full)
            found |= {"allocated": storage.nbytes(), "same": full.untyped_storage()._cdata == storage._cdata}
            if storage.nbytes() == found["wanted"] and found["same"] and found["shape"] == (12,):
                full.copy_(torch.arange(100, 112))
                allocate(full)  # it is there already: nothing may happen
                found["view"], found["again"] = view.tolist(), storage.nbytes()
                if dtype is torch.float32:
                    out.backward()
                    found["grads"] = [x.grad, weight.grad]
        seen.append(found)
    return seen


def judge_storage(lab: Lab) -> None:
    for saw in lab.run(see_storage)[0]:
        here = f"a buffer of 12 elements in {str(saw['dtype']).removeprefix('torch.')}, {saw['wanted']} bytes:"
        if saw["freed"]:
            why = "Not one byte was given back."
            if saw["moved"]:
                why = "`full` has another storage now, but a view that was taken before keeps the old one alive."
            elif saw["shape"] != (12,):
                why = "You made the tensor shorter, and its storage stayed as it was."
            lab.wrong(f"{here} after `free` its storage holds {saw['freed']} bytes, and 0 are right. {why}")
        if saw["shape"] != (12,):
            lab.wrong(f"{here} after `free` the tensor has the shape {saw['shape']}: only its storage should change.")
        if not saw["same"]:
            lab.wrong(f"{here} `allocate` gave `full` a new storage. Views of the old one, and what autograd saved, "
                      "stay without memory: let the old storage grow again.")
        if saw["allocated"] != saw["wanted"]:
            size = saw["wanted"] // 12
            why = {12: f"You counted elements: each takes {size} bytes.",
                   48: f"You allocated 4 bytes an element: here an element takes {size}."}.get(saw["allocated"], "")
            lab.wrong(f"{here} after `allocate` its storage holds {saw['allocated']} bytes. {why}".rstrip())
        if saw["again"] != saw["wanted"]:
            lab.wrong(f"{here} after a second `allocate` its storage holds {saw['again']} bytes: the memory was there "
                      "already, so nothing may happen.")
        lab.expect(saw["view"], list(range(102, 108)), f"{here} freed, allocated, filled with 100 to 111, and allocated "
                   "again, which must change nothing; the view of elements 2 to 8", exact=False, verb="it shows")
        if "grads" in saw:
            right = [torch.tensor([[303.0, 312.0], [303.0, 312.0]]), torch.tensor([[4.0] * 3, [6.0] * 3])]
            lab.expect(saw["grads"], right, f"{here} the backward of a weight in it, with the new "
                       "numbers; the gradients", verb="they have")


# 7.6 hooks ------------------------------------------------------------------------------------------------------------

class Watched(nn.Module):
    """A block that notes when it computes; its input gets a gradient unless it is the first."""

    def __init__(self, number: int, log: list):
        super().__init__()
        self.down, self.up = nn.Linear(4, 3), nn.Linear(3, 4)  # the last gradient is not that of the last in line
        self.number, self.log = number, log

    def forward(self, x):
        self.log.append(("compute", self.number, 0))
        return x + self.down(torch.tanh(self.up(x)))


def see_hooks(attach) -> dict:
    """Three blocks with the answer's hooks in three training steps and two evaluations. Freed weights are NaN."""
    log: list = []
    blocks = nn.Sequential(*[Watched(number, log) for number in range(3)])
    reference = copy.deepcopy(blocks)
    kept = [[param.detach().clone() for param in block.parameters()] for block in blocks]
    sums: list[list] = [[], [], []]

    def fill(number, values):
        for param, value in zip(blocks[number].parameters(), values, strict=True):
            param.data.copy_(value) if torch.is_tensor(value) else param.data.fill_(value)

    def note(event, number):
        log.append((event, number, sum(param.grad is not None for param in blocks[number].parameters())))

    def attach_to(number, block):  # the three take no argument, not even a default: a hook gives them what it has
        def unshard():
            note("unshard", number)
            fill(number, kept[number])

        def reshard():
            note("reshard", number)
            fill(number, [float("nan")] * 4)

        def reduce():
            note("reduce", number)
            sums[number].append([None if param.grad is None else param.grad.clone() for param in block.parameters()])
            for param in block.parameters():
                param.grad = None

        attach(block, unshard, reshard, reduce)

    for number, block in enumerate(blocks):
        fill(number, [float("nan")] * 4)
        attach_to(number, block)
    if any("forward" in vars(block) for block in blocks):
        return {"replaced": True}
    hooks = _hooks_of(blocks)
    x, phases, error = torch.arange(6.0).view(2, 3) / 6, {}, ""
    for step, training in STEPS.items():
        blocks.train(training)
        log.clear()
        loss = blocks(x).square().sum()
        phases[f"{step} forward"] = list(log)
        log.clear()
        with warnings.catch_warnings():  # torch warns of full backward hooks that come early; the verdict says more
            warnings.simplefilter("ignore")
            loss.backward()
        phases[f"{step} backward"] = list(log)
        for block in blocks:
            block.zero_grad()
        for phase, training in EVALUATIONS.items() if step == "first" else ():
            log.clear()
            blocks.train(training)
            try:
                with torch.no_grad():
                    blocks(x)
            except RuntimeError as problem:
                error = str(problem).splitlines()[0]
            phases[phase] = list(log)
    log.clear()
    reference(x).square().sum().backward()
    right = [[param.grad for param in block.parameters()] for block in reference]
    return {"replaced": False, "phases": phases, "error": error, "sums": sums, "right": right,
            "piled up": _hooks_of(blocks) > hooks}


def _hooks_of(blocks: nn.Sequential) -> int:
    """How many hooks there are on the blocks and their parameters."""
    return (sum(len(block._forward_pre_hooks) + len(block._forward_hooks) for block in blocks)
            + sum(len(param._post_accumulate_grad_hooks or ()) for param in blocks.parameters()))


STEPS = {"first": True, "second": True, "third": False}  # in the mode of training, and not
EVALUATIONS = {"an evaluation under `torch.no_grad()`": True,
               "an evaluation under `torch.no_grad()` and `model.eval()`": False}
FORWARD = [(event, number) for number in range(3) for event in ("unshard", "compute", "reshard")]
BACKWARD = [(event, number) for number in (2, 1, 0) for event in ("unshard", "reduce", "reshard")]
EITHER_MODE = " It was under `model.eval()`, which must make no difference: gradients are recorded there too."


def judge_hooks(lab: Lab) -> None:
    saw, = lab.run(see_hooks)
    if saw["replaced"]:
        lab.wrong("the block has another `forward` now: use hooks; do not replace `forward`.")
    phases = saw["phases"]
    for number in range(3):
        _judge_forward([each[0] for each in phases["first forward"] if each[1] == number], number, lab)
    for number in (2, 1, 0):
        _judge_backward([each for each in phases["first backward"] if each[1] == number], number, lab)
    if saw["error"]:
        lab.wrong(f"an evaluation under `torch.no_grad()` raised: {saw['error']}. No backward follows there: register "
                  "what waits for one only while gradients are recorded.")
    for phase, calls in phases.items():
        came, right = [each[:2] for each in calls], FORWARD if "back" not in phase else BACKWARD
        if came != right:
            why = {"second backward": " A count of gradients must begin at 0 again.", "third forward": EITHER_MODE,
                   "third backward": EITHER_MODE}.get(phase, "")
            if EVALUATIONS.get(phase) is False:  # the one in the mode of training was right
                why = " The mode must make no difference: every forward needs the weights, and frees them."
            if saw["piled up"]:
                why = " There are more hooks than before: those registered in a forward pile up. Register once."
            lab.wrong(f"{'' if phase in EVALUATIONS else 'the '}{phase} of blocks 0, 1, 2 gave {_words(came)}, and "
                      f"{_words(right)} is right.{why}")
    if any(grad.isnan().any() for got, *_ in saw["sums"] for grad in got if grad is not None):
        lab.wrong("a gradient holds NaN, as freed weights do: a part of a block's backward was computed without them. The "
                  "weights must be there before its backward begins, which is before any of its gradients comes.")
    lab.expect([got for got, *_ in saw["sums"]], saw["right"], "the gradients that `reduce` found, block by block",
               verb="they have", tolerance=1e-5)


def _judge_forward(events: list[str], number: int, lab: Lab) -> None:
    here = f"block {number} in the forward:"
    if "unshard" not in events or events.index("unshard") > events.index("compute"):
        came = "came after that" if "unshard" in events else "was never called"
        lab.wrong(f"{here} it computed, and `unshard` {came}: its weights were not there.")
    if "reduce" in events:
        lab.wrong(f"{here} `reduce` was called: there are no gradients yet.")
    if "reshard" not in events:
        lab.wrong(f"{here} `reshard` was never called: after the last block the whole model would be gathered.")
    if events.index("reshard") < events.index("compute"):
        lab.wrong(f"{here} `reshard` came before it computed.")


TOO_EARLY = ("A full backward hook waits for the gradient of the block's input; where the input needs none, as in the "
             "first block, torch calls it at once.")


def _judge_backward(calls: list[tuple], number: int, lab: Lab) -> None:
    here, events = f"block {number} in the backward:", [event for event, _, _ in calls]
    grads = {event: count for event, _, count in reversed(calls)}  # at the first call of each
    if "unshard" not in events:
        lab.wrong(f"{here} `unshard` was never called: the weights were freed after the forward, and the gradient of "
                  "the block's input needs them.")
    if grads["unshard"] or {"reduce", "reshard"} & set(events[:events.index("unshard")]):
        if grads["unshard"]:
            lab.wrong(f"{here} when `unshard` was called, {grads['unshard']} of its 4 gradients were there already: "
                      "the weights must be there before its backward begins.")
        lab.wrong(f"{here} {_words(calls)}: something came before its weights were there. {TOO_EARLY}")
    if "reduce" not in events:
        lab.wrong(f"{here} `reduce` was never called.")
    if events.count("reduce") > 1:
        lab.wrong(f"{here} `reduce` was called {events.count('reduce')} times: once, when the last of its gradients is "
                  "there.")
    if grads["reduce"] < 4:
        lab.wrong(f"{here} when `reduce` was called, {grads['reduce']} of its 4 gradients were there"
                  + (": wait for all." if grads["reduce"] else f". {TOO_EARLY}"))
    if "reshard" not in events:
        lab.wrong(f"{here} `reshard` was never called: after the first block's backward the whole model would be "
                  "gathered.")
    if events.index("reshard") < events.index("reduce"):
        if grads["reshard"] < 4:
            lab.wrong(f"{here} when `reshard` was called, {grads['reshard']} of its 4 gradients were there: the "
                      f"backward was not over. {TOO_EARLY}")
        lab.wrong(f"{here} `reshard` came before `reduce`: reduce first.")


def _words(calls: list[tuple]) -> str:
    return ", ".join(f"{event} {number}" for event, number, *_ in calls) or "nothing"
