"""A model that is cut with borders of one's own in place of the package's f and g."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from ....parallel.tensor import regions, row, vocabulary


@contextmanager
def borders(f: Callable, g: Callable) -> Iterator[None]:
    """`tensor_parallel`, and what it makes, takes f(values, comm) and g(values, comm) as long as this is entered."""
    def own_g(values, comm, unit):
        return g(values, comm)

    with mock.patch.object(regions, "copy_in", lambda values, comm, unit: f(values, comm)), \
            mock.patch.object(row, "reduce_out", own_g), mock.patch.object(vocabulary, "reduce_out", own_g):
        yield
