"""Which rank sees which samples: the data's rank map. Communicates nothing: every rank derives the same order."""

from collections.abc import Iterator

import numpy as np

from ..errors import BadInput


class ShardSampler:
    """A batch sampler (for `batches`, or a DataLoader's `batch_sampler`): yields this rank's lists of indices.

    An epoch is one shuffled order of `length` samples, the same on every rank, cut into global batches of
    world_size x micro_batch samples, of which rank r takes the r-th slice. So step k's global batch does not depend
    on how many ranks share it: one rank with a micro-batch of 4, and two with 2, see the same samples in each step.

    Every rank gets the same number of batches, whatever the length, so none waits in a collective for one that has
    run out. With `drop_last` the samples that do not fill a global batch are left out in this epoch. Without it the
    last global batch is filled up with samples from the start of the order, which are then seen twice.

    Each iteration is one epoch; a finished one moves on to the next. `load_state_dict` continues in mid-epoch, at
    another world size too, because it counts the samples that all ranks together have seen. That is the position of
    this iterator, so with the workers of a DataLoader, which read ahead, it is ahead of the training loop.
    Raises BadInput for an impossible rank or size, and for a length that makes no batch.
    """

    def __init__(self, length: int, rank: int, world_size: int, micro_batch: int,
                 shuffle: bool = True, seed: int = 0, drop_last: bool = True):
        if micro_batch < 1 or seed < 0:
            raise BadInput(f"micro_batch must be at least 1 and seed at least 0, not {micro_batch} and {seed}.")
        if not 0 <= rank < world_size:
            raise BadInput(f"rank must be in 0..world_size-1, not {rank} of {world_size}.")
        self.global_batch = world_size * micro_batch
        if length < (self.global_batch if drop_last else 1):
            raise BadInput(f"{length} samples make no batch of world_size x micro_batch = {world_size} x {micro_batch}"
                           f" = {self.global_batch}: use more data, or a smaller batch.")
        self.length, self.rank, self.micro_batch = length, rank, micro_batch
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch, self.seen = 0, 0  # seen: samples of this epoch that all ranks together have been given
        self._start = 0  # where the next iteration begins; not 0 only after load_state_dict

    def __len__(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        return self._batches_from(0)

    def __iter__(self) -> Iterator[list[int]]:
        self.seen, self._start = self._start, 0
        order = np.arange(self.length)
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(self.length)
        for _ in range(self._batches_from(self.seen)):
            first = self.seen + self.rank * self.micro_batch
            self.seen += self.global_batch
            # "wrap" happens only without drop_last, in the last global batch.
            yield order.take(range(first, first + self.micro_batch), mode="wrap").tolist()
        self.set_epoch(self.epoch + 1)

    def _batches_from(self, seen: int) -> int:
        left = max(0, self.length - seen)
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def set_epoch(self, epoch: int):
        """Choose the order of the next iteration. In the epoch under way it changes nothing, a restored position
        included, so that a resumed training loop may call it as the first one did."""
        if epoch != self.epoch:
            self.epoch, self.seen, self._start = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """The position, the same on every rank."""
        return {"epoch": self.epoch, "seen": self.seen, "seed": self.seed, "length": self.length}

    def load_state_dict(self, state: dict[str, int]):
        """Continue from that position. Raises BadInput if the data or the seed differ from those at saving."""
        for name in ("length", "seed"):
            if state[name] != getattr(self, name):
                raise BadInput(f"The sampler was saved with {name} = {state[name]}, and this one has "
                               f"{getattr(self, name)}: an exact resume needs the same.")
        self.epoch = state["epoch"]
        self.seen = self._start = state["seen"]
