"""Exercise 4.7 on its ranks: a small model trained with the learner's DataParallel, and what is concluded from it.

Everything that left the rank is noted, and when: a gradient that is ready, a bucket that leaves, the end of a backward.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from ..lab import Lab
from ..verdict import Wrong
from ..words import value_text
from .wire import Wire, sorted_values

BUCKET = 300  # elements
ROWS = 4  # samples a rank and micro-batch
# What a scenario does in each of its optimizer steps: micro-batches, and the branch that a rank takes in each.
EVERYTHING, LEFT, RIGHT, NEITHER = "both", "left", "right", "neither"
SCENARIOS = {
    "plain": [[EVERYTHING], [EVERYTHING]],
    "accumulation": [[EVERYTHING, EVERYTHING, EVERYTHING], [EVERYTHING]],
    "first only": [[EVERYTHING, LEFT]],
    "nobody": [[EVERYTHING], [LEFT]],
    "mixed": [[(LEFT, RIGHT)], [(RIGHT, LEFT)]],
    "neither": [[(NEITHER, EVERYTHING)], [(EVERYTHING, NEITHER)]],  # a whole bucket without gradients, on some ranks
}


class Net(nn.Module):
    """Two branches, of which a forward may use one only, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x, branch):
        h = self.frozen(self.first(x).tanh())
        if branch in (EVERYTHING, LEFT):
            h = h + self.left(h).tanh()
        if branch in (EVERYTHING, RIGHT):
            h = h + self.right(h).tanh()
        return self.last(h).square().mean()


def data(rank: int, step: int, micro: int) -> torch.Tensor:
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1000 * rank + 10 * step + micro)) + rank


def branch_of(branch, rank: int) -> str:
    """Of a pair, rank 0 takes the first and all others the second."""
    return branch if isinstance(branch, str) else branch[min(rank, 1)]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: param for name, param in model.named_parameters() if param.requires_grad}


def frozen_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: param for name, param in model.named_parameters() if not param.requires_grad}


def row(params, of=lambda param: param.detach()) -> torch.Tensor:
    return torch.cat([of(param).flatten() for param in params.values()])


def gradient_row(params) -> torch.Tensor:
    return row(params, lambda param: torch.zeros_like(param) if param.grad is None else param.grad.clone())


@contextmanager
def blamed(answer):
    """Inside, what fails is the answer's failure, and the package's own is out of reach."""
    with answer.guard.on():
        try:
            yield
        except Exception as error:
            answer.error = answer.error or error
            raise


# on the ranks --------------------------------------------------------------------------------------------------------

def train(answer, scenario: str) -> dict:
    """Train as the scenario says; what each step left, and the wire's log of it."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = Net()
    params, frozen, seen = trainable(model), frozen_of(model), []
    with Wire(agree=True, keep=scenario == "plain") as wire, blamed(answer):
        for name, param in params.items():  # before the answer's own hooks
            param.register_post_accumulate_grad_hook(lambda _, name=name: wire.note("ready", name=name))
        parallel = answer(model, BUCKET)
        started, frozen = row(params).clone(), row(frozen).clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for number, micros in enumerate(SCENARIOS[scenario]):
            wire.log.clear()
            start = row(params).clone()
            for micro, branch in enumerate(micros):
                parallel.sync = micro == len(micros) - 1
                wire.note("backward", sync=parallel.sync)
                model(data(rank, number, micro), branch_of(branch, rank)).backward()
                wire.note("over")
            parallel.finish()
            seen.append({"start": start, "gradient": gradient_row(params), "log": list(wire.log)})
            optimizer.step()
            optimizer.zero_grad()
    return {"started": started, "frozen": frozen, "steps": seen, "ended": row(params).clone()}


def trained(lab: Lab, scenario: str, world: int) -> list[dict]:
    """What `train` saw on each rank. Ends the check with more words where the ranks use different branches."""
    try:
        return lab.run(train, scenario, world=world)
    except Wrong as wrong:
        if scenario == "mixed" and "disagree" in str(wrong):
            lab.wrong(f"when rank 0 uses another branch than the others, {wrong}. A bucket may leave only when all "
                      "buckets before it have left, though it is full.")
        if scenario == "neither" and "disagree" in str(wrong):
            lab.wrong(f"when rank 0 uses no branch and the others use both, or the other way round, {wrong}. In each "
                      "step all buckets leave, also one for which this rank has no gradient at all: another rank has "
                      "gradients for it.")
        raise


# by the check --------------------------------------------------------------------------------------------------------

def buckets_of(params, limit: int = BUCKET) -> list[int]:
    """Elements of each bucket: the last parameter first, and a bucket closes before it grows beyond the limit."""
    return [sum(params[name].numel() for name in names) for names in names_of_buckets(params, limit)]


def names_of_buckets(params, limit: int = BUCKET) -> list[list[str]]:
    """The parameters of each bucket."""
    buckets, room = [], 0
    for name, param in reversed(params.items()):
        if param.numel() > room:
            buckets.append([])
            room = limit
        buckets[-1].append(name)
        room -= param.numel()
    return buckets


def fresh(seed: int = 0) -> Net:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return Net()


def local(start: torch.Tensor, rank: int, step: int, micro: int, branch) -> torch.Tensor:
    """The gradient of one rank's micro-batch, at parameters given as a row."""
    model = fresh()
    params = trainable(model)
    with torch.no_grad():
        for param, part in zip(params.values(), start.split([param.numel() for param in params.values()]), strict=True):
            param.copy_(part.view_as(param))
    model(data(rank, step, micro), branch_of(branch, rank)).backward()
    return gradient_row(params)


def judge(lab: Lab, scenario: str, ranks: list[dict]) -> None:
    world = len(ranks)
    for rank, found in enumerate(ranks):
        lab.expect(found["started"], row(trainable(fresh())), f"the parameters on rank {rank} of {world} before the "
                   "first step", [("The ranks start with different parameters: send those of rank 0 to all, else the "
                             "replicas never agree, however well the gradients are averaged.",
                             row(trainable(fresh(rank))) if rank else torch.zeros(0))])
        alone = ("You sent the trainable parameters alone: the forward uses frozen ones too, and so every rank needs "
                 "those of rank 0.")
        lab.expect(found["frozen"], row(frozen_of(fresh())), f"the frozen parameters on rank {rank} of {world} before "
                   "the first step", [(alone, row(frozen_of(fresh(rank))) if rank else torch.zeros(0))])
    for number, micros in enumerate(SCENARIOS[scenario]):
        steps = [found["steps"][number] for found in ranks]
        gradients = [[local(step["start"], rank, number, micro, branch) for micro, branch in enumerate(micros)]
                     for rank, step in enumerate(steps)]
        before = [found["steps"][number - 1]["gradient"] if number else None for found in ranks]
        for rank, step in enumerate(steps):
            text = words(scenario, number, rank, world)
            judge_log(lab, step, text, micros)
            judge_early(lab, step["log"], text, micros)
            judge_gradient(lab, step, gradients, rank, text, before[rank])
            judge_timing(lab, step["log"], text, all(branch == EVERYTHING for branch in micros))
    for rank, found in enumerate(ranks):
        lab.expect(found["ended"], ranks[0]["ended"], f"the parameters of rank {rank} and of rank 0 at the end")


def words(scenario: str, number: int, rank: int, world: int) -> str:
    about = {"plain": "one micro-batch", "accumulation": ("three micro-batches", "one micro-batch")[number],
             "first only": "two micro-batches, `right` unused in the second",
             "nobody": ("one micro-batch", "no rank uses `right`")[number],
             "mixed": "rank 0 uses another branch than the others",
             "neither": ("rank 0 uses no branch, the others both",
                         "rank 0 uses both branches, the others none")[number]}[scenario]
    return f"step {number + 1} ({about}), rank {rank} of {world}"


def judge_log(lab: Lab, step: dict, text: str, micros) -> None:
    """What was sent, and in which micro-batch."""
    params, log = trainable(fresh()), step["log"]
    sizes = buckets_of(params)
    sent = [entry["elements"] for entry in log if entry["verb"] == "all_reduce"]
    if torch.equal(sorted_values(log), step["start"].sort().values):
        lab.wrong(f"{text}: what left are the parameters and not the gradients. The hook gets the parameter, and its "
                  "gradient is `param.grad`.")
    strange = {entry["verb"] for entry in log if "elements" in entry} - {"all_reduce"}
    if strange:
        lab.wrong(f"{text}: it called {strange.pop()}. One all-reduce for each bucket is all that is needed.")
    early, sync = [], True
    for entry in log:
        sync = entry["sync"] if entry["verb"] == "backward" else sync
        early += [entry["elements"]] if entry["verb"] == "all_reduce" and not sync else []
    if early:
        lab.wrong(f"{text}: {sum(early)} elements left during a backward with `sync = False`. Only the last "
                  "micro-batch of a step sends, so that a step's traffic does not grow with the accumulation.")
    if sent == sizes:
        return
    came = f"{text}: the all-reduces had {value_text(sent)} elements, and the buckets are {sizes}"
    each = [param.numel() for param in reversed(params.values())]
    frozen = dict(fresh().named_parameters())
    if not sent and all(branch == EVERYTHING for branch in micros):
        why = "Nothing was sent: every rank keeps its own gradients."
    elif sorted(sent) == sorted(each):
        why = "You sent each parameter by itself: many small messages, where a bucket collects several."
    elif sent == [sum(sizes)]:
        why = "You sent all gradients as one row: nothing can leave before the last gradient is there."
    elif sorted(sent) == sorted(buckets_of(dict(reversed(params.items())))):
        why = ("You filled the buckets in the order of the forward: the backward makes the last parameters' gradients "
               "first.")
    elif sum(sent) > sum(sizes) and sum(sent) % sum(sizes) == 0:
        why = f"Every gradient left {sum(sent) // sum(sizes)} times."
    elif sorted(sent) == sorted(buckets_of(frozen)):
        why = "You gave frozen parameters a place in the buckets: they have no gradient."
    elif set(sent) < set(sizes) and len(sent) < len(sizes):
        why = ("Some buckets never left: one in which a gradient is missing never becomes full, so `finish` has to "
               "send it, with zeros for what is missing.")
    elif sorted(sent) == sorted(sizes):
        why = ("A bucket may leave only when all buckets before it have left, though it is full: another rank may have "
               "other full buckets, and all call the same all-reduces in the same order.")
    elif all(elements <= BUCKET for elements in sent):
        why = "A bucket is filled as long as the next parameter fits, and a parameter is never cut."
    else:
        why = f"A bucket has {BUCKET} elements at most: close it before it grows larger."
    lab.wrong(f"{came}. {why}")


def judge_early(lab: Lab, log: list[dict], text: str, micros) -> None:
    """No bucket leaves during the backward while a gradient of it is missing. The log has one all-reduce a bucket."""
    begun = max(i for i, entry in enumerate(log) if entry["verb"] == "backward")
    names, ready, number = names_of_buckets(trainable(fresh())), set(), 0
    for entry in log[begun:]:
        if entry["verb"] == "over":
            return
        if entry["verb"] == "ready":
            ready.add(entry["name"])
        elif entry["verb"] == "all_reduce":
            missing_ = [name for name in names[number] if name not in ready]
            if missing_:
                why = ("What arrived with `sync = False` does not count: only what arrives in the last backward says "
                       "that a gradient is complete." if len(micros) > 1 else
                       "What arrived in an earlier step does not count: `finish` has to forget it.")
                lab.wrong(f"{text}: bucket {number + 1} left when {len(missing_)} of its gradients, such as that of "
                          f"{missing_[0]!r}, had not arrived in this backward. {why}")
            number += 1


def judge_gradient(lab: Lab, step: dict, gradients, rank: int, text: str, before) -> None:
    world = len(gradients)
    sums = [sum(micros) for micros in gradients]  # of each rank, over its micro-batches
    total, last = sum(sums), sum(micros[-1] for micros in gradients)
    several = len(gradients[0]) > 1
    mistakes = [
        (f"You summed the gradients and never divided by the number of ranks: that acts like a learning rate {world} "
         "times as large.", total),
        ("You divided by the number of ranks twice.", total / world**2),
        ("You divided by 2, however many ranks there are.", total / 2),
        ("The average was never written back: these are this rank's own gradients.", sums[rank]),
        ("These are this rank's own gradients, divided by the number of ranks: the sum never came back.",
         sums[rank] / world)]
    if several:
        mistakes += [
            ("Only the last micro-batch was averaged: what the earlier ones left in `p.grad` belongs to it.",
             last / world),
            ("Only the last micro-batch was averaged, and what this rank had from earlier ones was added to it as it "
             "was: all of `p.grad` is to be averaged.", last / world + sums[rank] - gradients[rank][-1]),
            ("You divided by the number of micro-batches too: whoever wants their average scales the loss.",
             total / world / len(gradients[0]))]
    lab.expect(step["gradient"], total / world, f"{text}: the gradients after `finish`, in one row",
               [*mistakes, *missing(gradients, rank, before)], tolerance=1e-5)


def missing(gradients, rank: int, before):
    """Mistakes that show only where a parameter had no gradient in the last micro-batch."""
    world = len(gradients)
    sums, total = [sum(micros) for micros in gradients], sum(sum(micros) for micros in gradients)
    absent = gradients[rank][-1] == 0
    if before is not None:
        yield ("Where a parameter had no gradient, that of the step before was sent again: its place in the bucket has "
               "to be zero.", torch.where(total == 0, before, total / world))
        stale = [torch.where(own[-1] == 0, before, own[-1]) for own in gradients]
        yield ("Where a rank had no gradient, it sent that of the step before again: its place in the bucket has to be "
               "zero.", sum(stale) / world)
    if len(gradients[rank]) > 1:
        left_out = ("A parameter without a gradient in the last micro-batch was left out: what earlier ones left in "
                    "its `p.grad` has to be averaged too.")
        yield left_out, torch.where(absent, sums[rank], total / world)
        arrived = [torch.where(own[-1] == 0, torch.zeros_like(total), sum(own)) for own in gradients]
        yield left_out, sum(arrived) / world
    never = sums[rank] == 0
    yield ("A parameter that had no gradient on this rank got none: the other ranks' average is for it too, else the "
           "replicas part.", torch.where(never, torch.zeros_like(total), total / world))
    counted = sum((own[-1] != 0).float() for own in gradients).clamp(min=1)
    yield ("You divided by the number of ranks that had a gradient: divide by the number of ranks, the others count as "
           "zeros.", total / counted)


def judge_timing(lab: Lab, log: list[dict], text: str, all_used: bool) -> None:
    """Buckets leave while the backward goes on, and nobody waits before it is over."""
    if not all_used:
        return
    verbs = [entry["verb"] for entry in log]
    end, first_ready = len(verbs) - 1 - verbs[::-1].index("over"), verbs.index("ready")
    begun = max(i for i, verb in enumerate(verbs) if verb == "backward")
    left = [i for i, verb in enumerate(verbs) if verb == "all_reduce"]
    readies = [i for i in range(max(begun, first_ready), end) if verbs[i] == "ready"]
    if left[0] > end:
        lab.wrong(f"{text}: the gradients are right, but the first bucket left when the backward was over. A bucket "
                  "should leave from the hook, as soon as all its gradients are there, so that it travels meanwhile.")
    waits = [i for i in range(begun, end) if verbs[i] == "wait"]
    if waits:
        lab.wrong(f"{text}: the gradients are right, but the backward stood still {len(waits)} times to wait for an "
                  "all-reduce. Start it with `async_op=True`, keep what it returns, and wait in `finish`: waiting at "
                  "once looks asynchronous, and nothing overlaps.")
    if left[0] > readies[-1] or sum(i < end for i in left) < len(left):
        lab.wrong(f"{text}: the gradients are right, but {sum(i > readies[-1] for i in left)} buckets of {len(left)} "
                  "left only after the last gradient was there. Each should leave when its own gradients are there.")
