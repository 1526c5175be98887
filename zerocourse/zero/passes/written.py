"""Parameters that somebody else than the optimizer writes. Needed by: Embedding(max_norm=), weight.clamp_() in a forward.

A write into a gathered parameter at stage 3 would be lost with the gathered copy, and one into a parameter that trains in
half precision would be undone by the next step, which starts from the fp32 master weights. So what the model holds wins:
stage 3 keeps each rank's slice of what was written, and master weights take over what their rounded values do not explain.
If ranks write different values, as max_norm does when each has its own tokens, their replicas would part: that is refused.
Who writes into the optimizer's shards writes one rank's slice, of which the others hear nothing before the next step.

That somebody wrote is told by version counters, of which torch moves one at each write in place: values are compared only
where one has moved. What writes past torch (a kernel that was handed the address, an array of NumPy's) is not seen.
"""

from collections.abc import Iterable
from itertools import compress

import torch
from torch.autograd.graph import increment_version

from ...errors import BadInput
from ..buffers.buffer import FlatBuffer
from ..extra import Extra

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by bytes: what a value is read as, bit by bit; else int64
ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # as an int64; 2⁶⁴ over the golden ratio, whose multiples are spread evenly
AT_ONCE = 1 << 18  # elements: a checksum needs 24 bytes for each of so many


class WatchedValues:
    """Comes before a parameter's own class. A write into `param.data` moves no version of the parameter, so all that `data`
    hands out shares a counter of its own, which `version_of` adds."""

    _handed_out: torch.Tensor | None = None

    @property
    def data(self) -> torch.Tensor:
        values = torch.Tensor.data.__get__(self)  # a hidden parameter is gathered, or raises
        if self._handed_out is None or self._handed_out.untyped_storage()._cdata != values.untyped_storage()._cdata:
            self._handed_out = values
        return self._handed_out.detach()

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, values)


def version_of(param: torch.Tensor) -> int:
    """It moves whenever the parameter is written in place."""
    handed_out = getattr(param, "_handed_out", None)
    return param._version + (0 if handed_out is None else handed_out._version)


class WrittenParameters(Extra):
    """Extends the agreement by a question: which parameters were written in place, on any rank?"""

    def __init__(self, stage):
        self.flats, self.groups = stage.flats, stage.groups
        self.versions = {flat: {key: version_of(param) for key, param in flat.params.items()} for flat in self.flats}
        self.seen: set[FlatBuffer] = set()  # buffers of which parameters were written since the last step
        self.checksums: dict[str, torch.Tensor] = {}  # of what was written at stage 3, where the memory is gone by now
        alone = self.groups.shard.world_size == 1
        # Buffers in which a write into the optimizer's shards does not reach the model before the next step.
        self.apart = [flat for flat in self.flats if flat.shard_params and (
            flat.steps_masters or stage.shards_optimizer and not stage.shards_parameters and not alone)]
        self.note_shards()

    def note_shards(self) -> None:
        """The shards are as the stage left them."""
        self.shard_versions = {flat: flat.master._version for flat in self.apart}

    def before_forward(self) -> None:
        self.check_step()

    def check_step(self) -> None:
        """Raises BadInput when somebody wrote into the optimizer's shards between the steps."""
        for flat in self.apart:
            if flat.master._version != self.shard_versions[flat]:
                names = ", ".join(dict.fromkeys(part.name for part in flat.shard_params))
                raise BadInput(f"the optimizer's shards of {names} were written between its steps, which the model would not "
                               "see: write into the model, in `with zerocourse.gathered(module, write=True):`")

    def moved(self, flat: FlatBuffer) -> list[str]:
        """Names of the buffer's parameters whose version moved: they were written in place. What is freed was not."""
        if not flat.gathered:
            return []
        return [key for key, version in self.versions[flat].items() if version_of(flat.params[key]) != version]

    def note(self, flat: FlatBuffer, key: str) -> None:
        """What was written into the parameter so far is known."""
        self.versions[flat][key] = version_of(flat.params[key])

    def before_reshard(self, flat: FlatBuffer) -> None:
        """Take this rank's slice of what was written."""
        moved = self.moved(flat)
        self.seen.update([flat] if moved else [])
        for key in moved:
            self.checksums[key] = checksum(flat.views[key])
            self.note(flat, key)
        if moved:
            with torch.no_grad():
                flat.keep_written()

    def questions(self) -> dict[str, list[bool]]:
        written = {key for flat in self.flats for key in self.moved(flat)} | self.checksums.keys()
        return {"written": [key in written for flat in self.flats for key in flat.params]}

    def answered(self, answers: dict[str, list[bool]]) -> None:
        """Raises BadInput, on all ranks, for a parameter that they wrote in different ways."""
        written = list(compress([(flat, key) for flat in self.flats for key in flat.params], answers["written"]))
        if not written:
            return
        for flat in dict.fromkeys(flat for flat, _ in written):
            if flat.shards_parameters:
                self.before_reshard(flat)  # what is still gathered, such as the root: once noted, its write would not be seen then
        here = {key: checksum(flat.views[key]) for flat, key in written if key not in self.checksums and flat.gathered}
        mine = {key: int(here.get(key, self.checksums.get(key, 0))) for _, key in written}
        by_rank = self.groups.all_gather_object(mine)
        for key in mine:
            if len({sums[key] for sums in by_rank}) > 1:
                raise BadInput(f"parameter {key!r} was written in place, and not alike on all ranks (max_norm= does so when each "
                               "rank has its own tokens): write the same values everywhere, or write after the optimizer's step")
        self.checksums.clear()
        for flat, key in written:
            self.seen.add(flat)
            self.note(flat, key)

    def before_step(self) -> None:
        """Master weights whose rounded value is not what the model holds take over what it holds."""
        for flat in self.flats:
            flat.take_written(was_written=flat in self.seen or bool(self.moved(flat)))
        self.seen.clear()

    def after_step(self) -> None:
        self.note_shards()

    def note_update(self, flats: Iterable[FlatBuffer]) -> None:
        """The optimizer has changed these weights: the backward of an older forward raises, and nobody has written them."""
        for flat in flats:
            increment_version(list(flat.params.values()))
            for key in flat.params:
                self.versions[flat][key] += 1


@torch.no_grad()
def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Of the tensor's bits, on its device (int64, no dimension): the sum of its words, each times a number for its place."""
    words = tensor.detach().contiguous().view(-1).view(WORDS.get(tensor.itemsize, torch.int64))
    places = torch.arange(1, 1 + min(len(words), AT_ONCE), device=tensor.device) * ODD
    places ^= places >> 32
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in words.split(AT_ONCE):
        total = total * ODD + (part * places[: len(part)]).sum()
    return total
