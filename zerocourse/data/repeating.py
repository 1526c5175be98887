"""A data loader that begins again when it is through. It communicates nothing."""

from collections.abc import Iterable, Iterator


class RepeatingLoader:
    """Batches without end: after the last one of an epoch comes the first one of the next. By DeepSpeed's name.

    loader: any iterable that gives a new iterator each time, and at least one batch. Its other attributes are there as well.
    """

    def __init__(self, loader: Iterable):
        self.loader = loader
        self.batches = iter(loader)

    def __iter__(self) -> Iterator:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> object:
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)

    def __getattr__(self, name: str):
        if name == "loader":  # while __init__ has not run, as in a copy
            raise AttributeError(name)
        return getattr(self.loader, name)
