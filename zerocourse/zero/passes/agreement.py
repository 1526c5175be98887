"""What the ranks tell each other about a backward, in two small messages: is it the same list, and what do only some know?

The first goes out when a backward begins, and is read before anything is reduced: has every rank written the same list
(see `program`)? The second is sent at the end, of yes and no: who has a gradient? Which buckets hold something that is not
reduced? Which of the model's buffers changed, which parameters were written? A question is a name and a list of flags, one
for each thing that it is about, in an order that all ranks share; the answer has a flag for whatever is true on any of them.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import compress

from ...errors import CollectiveError
from ..buffers.buffer import FlatBuffer
from .program import Call
from .schedule import Pass


class SameList:
    """Have all ranks written the same list? The message, one reduction of four integers, is sent when this is made.

    of_pass: this rank's forward, from which the list follows.   awaited: the parameters whose gradients autograd will bring.
    """

    def __init__(self, stage, of_pass: Pass, awaited: Mapping[FlatBuffer, set[str]]):
        self.stage = stage
        # Below stage 3 it is also about earlier forwards, which may be in the same backward.
        self.earlier = {each for each in of_pass.earlier if not (each.had_backward or stage.shards_parameters)}
        self.calls = [names_of(of_pass.calls), *sorted(names_of(each.calls) for each in self.earlier)]
        ran = number(str(self.calls).encode())
        brings = number(bytes(key in awaited[flat] for flat in stage.flats for key in flat.params))
        self.is_known = ran in stage.reductions.known_lists
        self.was_read, self.same_gradients, self.same_earlier = False, True, True
        self.message = stage.groups.start_max([ran, -ran, brings, -brings], stage.groups.metadata_device(stage.device), "program")

    def read(self) -> list[list[Call]] | None:
        """The calls of all ranks where they differ, else None. Raises CollectiveError at stage 3, where every forward gathers."""
        ran, minus_ran, brings, minus_brings = self.message()
        self.was_read, self.same_gradients = True, brings == -minus_brings
        if ran == -minus_ran:
            self.stage.reductions.known_lists.add(ran)
            return None
        units = {unit.name: unit for unit in self.stage.units}
        by_rank = self.stage.groups.all_gather_object(self.calls)
        present = [calls for calls, *_ in by_rank]
        if self.stage.shards_parameters:
            refuse(present)
        self.same_earlier = all(earlier == by_rank[0][1:] for _, *earlier in by_rank)
        return [[Call(units[name], began) for name, began in calls] for calls in present]


def names_of(calls: Sequence[Call]) -> list[list]:
    """The calls as JSON can hold them."""
    return [[call.unit.name, call.began] for call in calls]


def number(content: bytes) -> int:
    """An int64 that another content is most unlikely to have, the same in every process."""
    return int.from_bytes(sha256(content).digest()[:7])


def refuse(by_rank: list[list[list]]) -> None:
    """Raises CollectiveError that names what some ranks ran and others did not."""
    names = [[name for name, _ in calls] for calls in by_rank]
    for name in dict.fromkeys(sum(names, [])):
        ran = [rank for rank, of_rank in enumerate(names) if name in of_rank]
        if len(ran) < len(names):
            skipped = next(rank for rank in range(len(names)) if rank not in ran)
            raise CollectiveError(f"unit {name!r} ran on rank {ran[0]} and was skipped on rank {skipped}: at stage 3, which gathers "
                                  "it, every rank must run the same units")
    rank = next(rank for rank, calls in enumerate(by_rank) if calls != by_rank[0])
    raise CollectiveError(f"rank 0 ran {' '.join(names[0])}, and rank {rank} ran {' '.join(names[rank])}: at stage 3, which gathers "
                          "them, every rank must run the same units in the same order")


def agree(stage) -> list[FlatBuffer]:
    """The buckets that all ranks must still reduce.

    Also marks who has a gradient on any rank, and passes on what the model's buffers and written parameters ask.
    """
    keys = [(flat, key) for flat in stage.flats for key in flat.params]
    left = stage.flats[::-1]
    if not stage.options.agreement:
        return [flat for flat in left if flat.unreduced]
    questions = {"has_grad": [key in flat.has_grad for flat, key in keys], "unreduced": [bool(flat.unreduced) for flat in left]}
    for extra in stage.extras:
        questions |= extra.questions()
    flags = iter(stage.groups.on_any_rank(sum(questions.values(), []), stage.groups.metadata_device(stage.device)))
    answers = {name: [next(flags) for _ in asked] for name, asked in questions.items()}
    for flat, key in compress(keys, answers["has_grad"]):
        flat.has_grad.add(key)
    for extra in stage.extras:
        extra.answered(answers)
    return list(compress(left, answers["unreduced"]))
