"""What the ranks tell each other at the end of a backward: one small message of yes and no, and all act on its answer.

Who has a gradient? Which buckets hold something that is not reduced? Which of the model's buffers changed, which
parameters were written? Did all run the same units? A question is a name and a list of flags, one for each thing that it
is about, in an order that all ranks share; the answer has a flag for whatever is true on any of them.
"""

from itertools import compress

import torch

from ..errors import CollectiveError
from .buffer import FlatBuffer


def agree(stage) -> list[FlatBuffer]:
    """The buckets that all ranks must still reduce.

    Also marks who has a gradient on any rank, and passes on what the model's buffers and written parameters ask.
    Raises CollectiveError with the name of a unit that some ranks skipped in their forward.
    """
    keys = [(flat, key) for flat in stage.flats for key in flat.params]
    left = stage.flats[::-1]
    if not stage.options.agreement:
        return [flat for flat in left if flat.unreduced]
    ran = set().union(*(each.ran for each in stage.passes))
    questions = {"has_grad": [key in flat.has_grad for flat, key in keys],
                 "unreduced": [bool(flat.unreduced) for flat in left],
                 "ran": [unit in ran for unit in stage.units],
                 "skipped": [bool(ran) and unit not in ran for unit in stage.units]}
    for extra in stage.extras:
        questions |= extra.questions()
    # To read the answer on a GPU would wait for all that it still computes. A group of NCCL alone takes nothing from the host.
    on_host = all("gloo" in comm.backends or not comm.peers for comm in stage.groups.comms)
    flags = iter(stage.groups.on_any_rank(sum(questions.values(), []), torch.device("cpu") if on_host else stage.device))
    answers = {name: [next(flags) for _ in asked] for name, asked in questions.items()}
    for unit, ran_somewhere, skipped in zip(stage.units[1:], answers["ran"][1:], answers["skipped"][1:], strict=True):
        if ran_somewhere and skipped:
            raise CollectiveError(f"unit {unit.name!r} ran on some ranks and was skipped on others (rank {stage.comm.rank} "
                                  f"{'ran' if unit in ran else 'skipped'} it): every rank must run the same units")
    for flat, key in compress(keys, answers["has_grad"]):
        flat.has_grad.add(key)
    for extra in stage.extras:
        extra.answered(answers)
    return list(compress(left, answers["unreduced"]))
