"""Samples of one prompt share its blocks, and copy the last one when they write into it: each has the tokens that it has without a cache."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from zerocourse.errors import BadInput
from zerocourse.inference import BlockPool, Request, Scheduler, Server, repeated
from zerocourse.models.gpt2 import build_model

V, NEW, SAMPLES = 64, 9, 5
WAYS = {"room for all": {}, "pieces of 7": {"budget": 7}, "pieces of 1": {"budget": 1}, "blocks of one token": {"blocks": 400, "block_size": 1},
        "one block a prompt": {"block_size": 64}, "preempted": {"blocks": 14}, "hardly room for one": {"blocks": 9},
        "preempted, blocks of one": {"blocks": 40, "block_size": 1}, "nothing shared": {"share": False}, "guessed": {"draft": repeated()},
        "guessed, one token after 17": {"draft": lambda tokens, most: [1, 2, 3, 4][:most], "budget": 17},
        "guessed, preempted": {"draft": repeated(), "blocks": 14}, "kept": {"keep": True}}


def gpt():
    torch.manual_seed(0)
    model = build_model("gpt2-tiny", vocab_size=V)
    for param in model.parameters():
        param.data *= 2
    return model, lambda tokens: model.eval()(torch.tensor([tokens]))[0]


def llama():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.2))
    return model, lambda tokens: model.eval()(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


MODELS = {"ours": gpt, "llama": llama}


class Drawn:
    """Draws tokens, and remembers with which number it drew each."""

    def __init__(self):
        self.generator, self.numbers = torch.Generator().manual_seed(3), []

    def token(self, logits_V, number):
        return min(int(torch.searchsorted(logits_V.double().softmax(-1).cumsum(-1), number)), V - 1)

    def __call__(self, logits_V):
        self.numbers.append(torch.rand((), generator=self.generator, dtype=torch.float64))
        return self.token(logits_V, self.numbers[-1])


def prompts():
    """Of 1, 4, 18 and 28 tokens in blocks of 4: two of them end with a full block. Two have the same beginning."""
    draw = torch.Generator().manual_seed(1)
    long = torch.randint(V, (28,), generator=draw).tolist()
    return [long[:18], [7], long, torch.randint(V, (4,), generator=draw).tolist()]


def owned(server):
    """Every block has as many owners as tables in which it stands, and is free without them."""
    tables = [request.table for request in (*server.scheduler.running, *server.scheduler.waiting)]
    for block, owners in enumerate(server.pool.owners):
        assert owners == sum(table.count(block) for table in tables) and (owners == 0) == (block in server.pool.free)


def written_alone(server):
    """Before a forward: whoever writes into a block has it alone."""
    begin = server.cache.begin

    def checked(pieces):
        for piece in pieces:
            blocks = piece.request.table[piece.start // server.pool.size : server.pool.needed(piece.end)]
            assert [server.pool.owners[block] for block in blocks] == [1] * len(blocks), "a block that others read is written"
        begin(pieces)

    server.cache.begin = checked
    return server


def sampled(model, stop=None, check=True, **way):
    """[request, the numbers with which it was drawn], the server, and how many blocks were taken at most."""
    choose, taken = Drawn(), 0
    server = Server(model, **{"blocks": 120, "block_size": 4, "budget": 64} | way, choose=choose)
    if check:
        written_alone(server)
    requests = [request for prompt in prompts() for request in server.add_samples(prompt, SAMPLES, NEW, stop)]
    numbers = {request: [] for request in requests}
    while server.busy:
        before = len(choose.numbers)
        told = server.step()
        for (request, _), number in zip(told, choose.numbers[before:], strict=True):
            numbers[request].append(number)
        taken = max(taken, server.pool.taken)
        if check:
            owned(server)
    return numbers, server, taken


def without_cache(forward, request, numbers):
    tokens = request.tokens[: request.prompt]
    with torch.no_grad():
        for number in numbers:
            tokens.append(Drawn().token(forward(tokens)[-1], number))
    return tokens


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_tokens_are_those_of_no_cache(name, way):
    model, forward = MODELS[name]()
    numbers, server, _ = sampled(model, **WAYS[way])
    for request, drawn in numbers.items():
        assert request.done and len(drawn) == NEW and request.tokens == without_cache(forward, request, drawn)
    assert len({tuple(request.tokens) for request in numbers}) > 3 * SAMPLES, "samples differ"
    assert not server.pool.taken and not any(server.pool.owners) and not server.busy
    assert (server.scheduler.preempted > 0) == (way in ("preempted", "hardly room for one", "preempted, blocks of one", "guessed, preempted"))


@pytest.mark.parametrize("way", ("room for all", "preempted", "blocks of one token", "guessed", "nothing shared"))
def test_samples_end_in_any_order(way):
    model, forward = gpt()
    lengths = set()
    for stop in range(0, V, 7):
        numbers, server, _ = sampled(model, stop=stop, **WAYS[way])
        assert not server.pool.taken and sorted(server.pool.free) == list(range(len(server.pool.owners)))
        assert all(stop not in request.generated[:-1] for request in numbers)
        for request, drawn in list(numbers.items())[:: SAMPLES + 1]:
            assert request.tokens == without_cache(forward, request, drawn)
        lengths |= {tuple(len(request.generated) for request in list(numbers)[:SAMPLES])}
    assert len(lengths) > 1 and any(len(set(each)) > 1 for each in lengths)


@pytest.mark.parametrize("length, full, copies", ((18, 4, SAMPLES - 1), (16, 4, 0), (3, 0, SAMPLES - 1)))
def test_blocks_are_counted_once_and_the_last_is_copied_for_all_but_one(length, full, copies):
    server = Server(gpt()[0], 100, 4, choose=Drawn())
    requests = server.add_samples(list(range(length)), SAMPLES, 3)
    server.step()
    assert server.rows == length and server.pool.taken == server.pool.needed(length) and server.scheduler.copied == 0
    assert all(request.table == requests[0].table for request in requests) and {*server.pool.owners} == {0, SAMPLES}
    server.step()
    assert server.rows == length + SAMPLES and server.scheduler.copied == copies
    assert server.pool.taken == full + SAMPLES and len({request.table[-1] for request in requests}) == SAMPLES
    assert len({tuple(request.table[:full]) for request in requests}) == 1
    server.run()
    assert not server.pool.taken and server.scheduler.copied == copies


@pytest.mark.parametrize("seed", range(25))
def test_any_mixture_of_groups_that_come_in_over_time(seed):
    """Of 1 to 5 samples, with the least room that one of them needs or a little more, and some of them end early."""
    (model, forward), drawn, choose = gpt(), random.Random(seed), Drawn()
    size, groups = drawn.choice((1, 2, 3, 4, 8)), []
    for _ in range(drawn.randint(1, 4)):
        shared = groups[0][0][: drawn.randint(0, 9)] if groups else []
        groups.append((shared + [drawn.randrange(V) for _ in range(drawn.randint(1, 12))], drawn.randint(1, 5), drawn.randint(1, 8)))
    least = max(-(-(len(prompt) + new) // size) for prompt, _, new in groups)
    server = written_alone(Server(model, least + drawn.randint(0, 12), size, budget=drawn.choice((1, 3, 7, 100)), choose=choose,
                                  draft=drawn.choice((None, repeated(), lambda tokens, most: [1, 2, 3][:most])), keep=drawn.random() < 0.3))
    numbers = {}
    while groups or server.busy:
        if groups and drawn.random() < 0.5:
            numbers |= {request: [] for request in server.add_samples(*groups.pop(), stop=drawn.choice((None, 3)))}
        before = len(choose.numbers)
        for (request, _), number in zip(server.step(), choose.numbers[before:], strict=True):
            numbers[request].append(number)
        owned(server)
    assert not server.pool.taken
    for request, each in numbers.items():
        assert request.done and request.tokens == without_cache(forward, request, each)


def test_samples_keep_their_place_among_those_who_came_later():
    server = Server(gpt()[0], 100, 4, choose=Drawn())
    came = [*server.add_samples([1, 2, 3], 3, 5), server.add([4, 5], 5), *server.add_samples([6], 2, 5)]
    server.step()
    assert server.scheduler.running == came


def test_a_sample_begins_where_its_prompt_ends():
    scheduler, first = Scheduler(BlockPool(10, 4), 100), Request(list(range(6)), 3)
    first.samples = [Request(list(range(6)), 3)]
    scheduler.add(first)
    (piece,) = scheduler.plan()
    assert scheduler.computed(piece)
    (sample,) = scheduler.begin_samples(first)
    assert sample.computed == 6 and sample.table == first.table and sample.table is not first.table
    assert scheduler.running == [first, sample] and scheduler.begin_samples(first) == []


def test_nobody_gives_blocks_back_for_a_guess():
    """Two blocks are free, and the copy takes one of them."""
    server = Server(gpt()[0], 5, 4, draft=lambda tokens, most: [1] * most)
    requests = server.add_samples(list(range(10)), 2, 10)
    server.step()
    server.step()
    assert not server.scheduler.preempted and server.guessed == 5 + 1 and server.scheduler.copied == 1 and requests[0].table != requests[1].table
    server.run()
    assert not server.pool.taken


def test_one_sample_is_a_request_and_copies_nothing():
    server = Server(gpt()[0], 20, 4)
    (one,), plain = server.add_samples([1, 2, 3], 1, 6), Server(gpt()[0], 20, 4)
    alone = plain.add([1, 2, 3], 6)
    server.run()
    plain.run()
    assert one.tokens == alone.tokens and server.rows == plain.rows and not server.scheduler.copied


def test_samples_need_fewer_rows_and_blocks_than_requests():
    (_, shared, most), (_, alone, all_of_them) = sampled(gpt()[0]), sampled(gpt()[0], share=False)
    rows = sum(map(len, prompts()))
    assert alone.rows - shared.rows == (SAMPLES - 1) * rows
    assert most < all_of_them and alone.scheduler.copied == 0 and shared.scheduler.copied == 2 * (SAMPLES - 1)


def other_tokens(model, forward):
    numbers, *_ = sampled(model, check=False)
    return any(request.tokens != without_cache(forward, request, drawn) for request, drawn in numbers.items())


def test_a_server_that_writes_without_a_copy_gives_other_tokens(monkeypatch):
    """Samples then see each other's keys; and a copy of nothing is no better."""
    model, forward = gpt()
    assert not other_tokens(model, forward)
    with monkeypatch.context() as patch:
        patch.setattr("zerocourse.inference.scheduler.Scheduler.must_copy", lambda self, request: False)
        assert other_tokens(model, forward)
    monkeypatch.setattr("zerocourse.inference.cache.PagedCache.copy", lambda self, blocks: None)
    assert other_tokens(model, forward)


def test_a_pool_that_keeps_the_owner_of_what_was_copied_leaks(monkeypatch):
    def keeps(self, table, number):
        source, table[number] = table[number], self.take()
        return source, table[number]

    monkeypatch.setattr(BlockPool, "copy", keeps)
    _, server, _ = sampled(gpt()[0], check=False)
    assert server.pool.taken and any(server.pool.owners), "nobody is left, and blocks are"


@pytest.mark.parametrize("samples, words", ((0, "samples is 0: it must be at least 1"),))
def test_what_is_refused(samples, words):
    server = Server(gpt()[0], 20, 4)
    with pytest.raises(BadInput, match=words):
        server.add_samples([1, 2], samples, 3)
    assert not server.busy
