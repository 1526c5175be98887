"""The checks of chapter 07, ZeRO-3. What runs on the ranks is in `stage3_probe`, `hook_probe`, `stack_probe`."""

from ....zero.stage3 import Stage3
from ..exercise import exercise
from ..lab import Lab
from . import stage_runs, hook_probe, stack_probe, stage3_probe

WORLDS = (2, 3)
OWN = Stage3.ops


# 7.1 ----------------------------------------------------------------------------------------------------------------

def sends(*, gathers=lambda G, again: G * (1 + again), reductions=lambda G: G, share=lambda n, ranks: -(-n // ranks),
          others=lambda ranks: ranks - 1, cut=lambda units: units):
    """Elements sent, when all units are gathered and reduced so many times."""
    def sent(units, ranks, micro_batches, reshard_after_forward):
        once = others(ranks) * sum(share(n, ranks) for n in cut(units))
        return {"all_gather": once * gathers(micro_batches, reshard_after_forward),
                "reduce_scatter": once * reductions(micro_batches)}
    return sent


@exercise("7.1", "What a step of stage 3 sends", minutes=10, difficulty=1, answer="elements_sent")
def elements_sent(lab: Lab):
    even = [([600, 1200, 1200, 600], ranks, micro_batches, again) for ranks in (2, 4, 1) for micro_batches in (1, 4)
            for again in (True, False)]
    lab.compare(even, sends(), [
        ("You gathered once for a forward and its backward: with `reshard_after_forward` the parameters are freed "
         "between the two, so the backward gathers them again.", sends(gathers=lambda G, again: G)),
        ("You gathered twice although the parameters were kept: without `reshard_after_forward` the backward finds "
         "them where the forward left them.", sends(gathers=lambda G, again: 2 * G)),
        ("You turned `reshard_after_forward` round: True frees the parameters after the forward, and that costs a "
         "second gather.", sends(gathers=lambda G, again: G * (2 - again))),
        ("You reduced once for the whole step: a rank has no room for a whole gradient, so the gradients of every "
         "micro-batch are reduced.", sends(reductions=lambda G: 1)),
        ("You gathered for the first micro-batch alone: its backward frees the parameters, so the next forward gathers "
         "them again.", sends(gathers=lambda G, again: 1 + again)),
        ("You kept the parameters over all micro-batches: `reshard_after_forward=False` keeps them from a forward to "
         "its backward, which frees them.", sends(gathers=lambda G, again: 2 * G if again else 1)),
        ("You left the micro-batches out: each has its own forward and backward, and its own collectives.",
         sends(gathers=lambda G, again: 1 + again, reductions=lambda G: 1)),
        ("You let a rank send to all ranks, itself among them: its own share stays where it is.",
         sends(others=lambda ranks: ranks)),
        ("You let a rank send its share once: each of the N - 1 others needs it.",
         sends(others=lambda ranks: int(ranks > 1))),
        ("You counted bytes: elements are asked for.", lambda *case: {key: 4 * n for key, n in sends()(*case).items()}),
        ("You changed the two round: parameters are gathered, gradients are reduced.",
         lambda *case: dict(zip(("reduce_scatter", "all_gather"), sends()(*case).values(), strict=True))),
    ], exact=False)
    ragged = [([601, 7, 2], ranks, 3, again) for ranks in (2, 4) for again in (True, False)]
    lab.compare(even + ragged, sends(), [
        ("You cut the sum of all units: each unit is gathered by itself, so each is padded by itself.",
         sends(cut=lambda units: [sum(units)])),
        ("You rounded a share down: the last rank's share is padded up to the size of the others.",
         sends(share=lambda n, ranks: n // ranks)),
    ])
    return "gathers and reductions, padding included, also over several micro-batches."


# 7.2 ----------------------------------------------------------------------------------------------------------------

def most(*, window=lambda prefetch: prefetch + 1, root=True, largest=False, keeps=True, first=False, biggest=False):
    """The most whole elements, if so many neighbours are gathered at a time."""
    def peak(root_size, blocks, prefetch, reshard_after_forward):
        wide = len(blocks) if keeps and not reshard_after_forward else min(len(blocks), window(prefetch))
        sums = [sum(blocks[i:i + wide]) for i in range(len(blocks) - wide + 1)]
        here = sums[0] if first else max(sums)
        here = wide * max(blocks) if largest else sum(sorted(blocks)[len(blocks) - wide:]) if biggest else here
        return here + root * root_size
    return peak


@exercise("7.2", "Gathered at a time", minutes=15, difficulty=1, answer="most_gathered")
def most_gathered(lab: Lab):
    models = [(50, [10, 20, 40, 80, 70]), (7, [300, 10, 10, 200]), (1000, [64]), (5, [9, 90, 9, 90, 60, 9])]
    cases = [(root, blocks, prefetch, reshard) for root, blocks in models for reshard in (True, False)
             for prefetch in (0, 1, 2, 8)]
    lab.compare(cases, most(), [
        ("You left out the root: it is gathered before the first block and freed after the last.", most(root=False)),
        ("You left out the block that computes: with `prefetch` ahead of it, there are `prefetch` + 1.",
         most(window=lambda prefetch: prefetch)),
        ("You left out the blocks that are gathered ahead.", most(window=lambda prefetch: 1)),
        ("You took one block too many: the one that computes, and `prefetch` more. The one before is freed already.",
         most(window=lambda prefetch: prefetch + 2)),
        ("You multiplied the largest block: blocks have different sizes, so add up the neighbours and look for the "
         "place where the sum is largest.", most(largest=True)),
        ("You added up the largest blocks wherever they are: only neighbours are gathered at the same time.",
         most(biggest=True)),
        ("You looked at the first blocks alone: the largest sum may come later.", most(first=True)),
        ("You ignored `reshard_after_forward=False`: nothing is freed in the forward, so at its end all blocks are "
         "whole.", most(keeps=False)),
    ])
    return "root, the block that computes and those ahead of it; and all of them where nothing is freed."


# 7.3 ----------------------------------------------------------------------------------------------------------------

def play(blocks, prefetch, *, ahead=(0, 0), late=False, twice=False, second=True, backwards=True, frees=True,
         reduce_last=False, reduces=True, all_at_once=False, by_name=False):
    """The events of a step. ahead: added to `prefetch` in the forward and in the backward."""
    log, there = [], set()

    def gather(names):
        for name in names:
            if twice or name not in there:
                there.add(name)
                log.append(f"unshard {name}")

    for direction, more in zip(("forward", "backward"), ahead, strict=True):
        order = blocks if direction == "forward" or not backwards else blocks[::-1]
        depth = len(blocks) if all_at_once in (True, direction) else max(0, prefetch + more)
        for i, name in enumerate(order):
            if i == 0 and second == "twice":  # as if they had been resharded
                there.clear()
            if direction == "forward" or second:
                names = order[i:i + 1] if late else order[i:i + 1 + depth]
                gather(sorted(names, reverse=direction == "backward") if by_name else names)
            log.append(f"{direction} {name}")
            if late and (direction == "forward" or second):
                gather(order[i + 1:i + 1 + depth])
            if direction == "backward":
                last = [f"reduce {name}"] * reduces + [f"reshard {name}"]
                log += last[::-1] if reduce_last else last
            elif frees:
                log.append(f"reshard {name}")
            if frees or direction == "backward":
                there.discard(name)
    return log


def plays(**how):
    return lambda blocks, prefetch: play(blocks, prefetch, **how)


def _first_other_event(case, got, right) -> str | None:
    if not isinstance(got, (list, tuple)) or list(got) == right:
        return None
    for number, (mine, wanted) in enumerate(zip(got, right, strict=False), start=1):
        if mine != wanted:
            return f"event {number} is {mine!r} where {wanted!r} is right"
    return f"it has {len(got)} events where {len(right)} are right; the first {min(len(got), len(right))} are the same"


@exercise("7.3", "The order of the verbs", minutes=25, difficulty=2, answer="step_events")
def step_events(lab: Lab):
    blocks = ["h.0", "h.1", "h.2", "h.3"]
    cases = [(blocks, 0), (blocks, 1), (blocks, 2), (blocks[:1], 1), (blocks[:2], 9), (["h.8", "h.9", "h.10", "h.11"], 2)]
    lab.compare(cases, play, [
        ("You gathered nothing ahead: `prefetch` blocks after the present one are unsharded before it computes.",
         plays(ahead=(-99, -99))),
        ("You gathered ahead in the forward alone: the backward does it too, towards the first block.",
         plays(ahead=(0, -99))),
        ("You counted the block itself: `prefetch` blocks *after* the present one are gathered ahead.",
         plays(ahead=(-1, -1))),
        ("You gathered one block too far ahead.", plays(ahead=(1, 1))),
        ("You gathered all blocks at the beginning: then a rank holds the whole model, and nothing is saved.",
         plays(all_at_once=True), plays(all_at_once="forward")),
        ("You started to gather ahead after the block computed: then nothing travels while it computes, and that was "
         "the purpose.", plays(late=True)),
        ("You gathered a block again that was there already.", plays(twice=True)),
        ("You went by the names: the order of `blocks` says which is nearest, and \"h.10\" sorts before \"h.8\".",
         plays(by_name=True)),
        ("You did not gather again for the backward: after the forward every block was resharded.",
         plays(second=False)),
        ("You kept the blocks from the forward to the backward, which is `reshard_after_forward=False`: here each is "
         "resharded as soon as it computed.", plays(frees=False)),
        ("You did not reshard after the forward: each block is resharded as soon as it computed.",
         plays(frees=False, second="twice")),
        ("You walked the backward from the first block to the last: it goes the other way.", plays(backwards=False)),
        ("You resharded before you reduced: in this list the reduction comes first.", plays(reduce_last=True)),
        ("You never reduced: the gradients of a block go to their owners when its backward is over.",
         plays(reduces=False)),
    ], tell=_first_other_event)
    return "each block is gathered twice, while the one before it computes, and freed twice."


# 7.4 ----------------------------------------------------------------------------------------------------------------

@exercise("7.4", "Memory that comes and goes", minutes=15, difficulty=2, answer=("free", "allocate"),
          replaces=("zerocourse.zero.storage:FreeableStorage.free", "zerocourse.zero.storage:FreeableStorage.allocate"))
def free_and_take(lab: Lab):
    hook_probe.judge_storage(lab)
    return "0 bytes while free, and afterwards every view, also autograd's, reads the new numbers."


# 7.5 ----------------------------------------------------------------------------------------------------------------

@exercise("7.5", "The operations of stage 3", minutes=30, difficulty=2, answer=("unshard", "reshard", "step"),
          own=(OWN.unshard, OWN.reshard, OWN.step), timeout=20)
def stage3_ops(lab: Lab):
    for world in WORLDS:
        stage3_probe.judge_reshard(lab, world)
        stage3_probe.judge_unshard(lab, world)
        stage3_probe.judge_step(lab, world)
        stage_runs.judge(lab, ["unshard", "reshard", "step"], stage=3, world=world)
    return "GPT-2 trained with it on 2 and 3 ranks: the package's losses, its bytes held, its elements sent."


# 7.6 ----------------------------------------------------------------------------------------------------------------

@exercise("7.6", "Hooks at the right moments", minutes=30, difficulty=3, answer="attach",
          replaces=("zerocourse.zero.hooks:*",))
def attach(lab: Lab):
    hook_probe.judge_hooks(lab)
    return "gathered before each use, freed after it, and reduced once, when the whole gradient was there."


# 7.7 ----------------------------------------------------------------------------------------------------------------

@exercise("7.7", "Stage 3 from nothing", minutes=75, difficulty=3, answer="shard_stack",
          replaces=("zerocourse:shard", *(f"zerocourse.comm.group:Comm.{name}" for name in ("all_gather", "reduce_scatter")),
                    "zerocourse.zero.buffer:FlatBuffer.fill", "zerocourse.zero.stage3:*"), timeout=15)
def shard_stack(lab: Lab):
    for world in WORLDS:
        stack_probe.judge_stack(lab, world)
    return "trained on 2 and 3 ranks like the unsharded model: a share of it between steps, few blocks at the peak."
