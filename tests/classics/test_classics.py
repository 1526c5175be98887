"""The classics of chapter 04: rings, parameter servers, word count."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

from zerocourse.classics import parameter_server, ring, word_count


def reduced(name: str, n: int):
    row = torch.arange(n, dtype=torch.float32) + 100 * dist.get_rank()
    sent = getattr(ring, name)(row)
    return row, sent


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("n", [12, 7, 2])
def test_ring_and_star_add_up(pool, world_size, n):
    want = torch.arange(n) * world_size + 100.0 * sum(range(world_size))
    for name in ("ring_all_reduce", "star_all_reduce"):
        for row, _ in pool(world_size).run(reduced, name, n):
            assert torch.equal(row, want)
    for rank, (row, _) in enumerate(pool(world_size).run(reduced, "ring_reduce_scatter", n)):
        assert torch.equal(row.tensor_split(world_size)[rank], want.tensor_split(world_size)[rank])


def test_what_is_sent(pool):
    assert [sent for _, sent in pool(4).run(reduced, "ring_all_reduce", 12)] == [18] * 4  # 2n(N-1)/N
    assert [sent for _, sent in pool(4).run(reduced, "star_all_reduce", 12)] == [36, 12, 12, 12]


def pull(parameters, worker, step):
    return parameters - worker  # of half the squared distance to the worker's own number


def serve(kind: str, steps: int):
    result = getattr(parameter_server, kind)(torch.zeros(3), pull, steps, 0.5)
    dist.barrier()
    return result


def test_a_synchronous_server_is_plain_gradient_descent(pool):
    want = torch.zeros(3)
    for _ in range(5):
        want = want - 0.5 * (want - 1.5)
    for parameters in pool(3).run(serve, "synchronous", 5):
        assert torch.allclose(parameters, want)


def test_an_asynchronous_server_takes_every_gradient_once(pool):
    parameters, staleness = pool(3).run(serve, "asynchronous", 30)[0]
    assert len(staleness) == 60 and min(staleness) >= 0
    assert (parameters - 1.5).abs().max() < 0.75  # near the middle of 1 and 2, but not settled


def test_staleness_hurts():
    def losses(delay):
        return parameter_server.delayed(torch.ones(1), lambda p, *_: p, lambda p: float(p @ p), 30, 0.6, delay)

    assert losses(0)[-1] < 1e-10
    assert losses(1)[-1] < losses(0)[0]
    assert losses(4)[-1] > 10 * losses(4)[0]  # the same step size diverges


def count(texts):
    return word_count.word_count(texts[dist.get_rank()])


def test_word_count(pool):
    texts = ["the cat and the dog", "the end", ""]
    found = pool(3).run(count, texts)
    together = Counter()
    for rank, (total, sent) in enumerate(found):
        assert all(word_count.owner(word, 3) == rank for word in total)
        assert sent >= 0
        together += total
    assert together == Counter(" ".join(texts).split())
