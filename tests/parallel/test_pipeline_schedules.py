"""Schedules of pipelines as lists: their order, what they hold, how long they take, and that none of them deadlocks."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerocourse.errors import BadInput
from zerocourse.parallel.pipeline import (
    Action,
    Costs,
    Schedule,
    deadlock,
    gpipe,
    interleaved,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    plan,
    problems,
    simulate,
    with_transfers,
    zb_h1,
)
from zerocourse.parallel.pipeline.links import communicators, link_of, links
from zerocourse.parallel.pipeline.schedules.makespan import in_flight

RANKS, BATCHES, CHUNKS = st.integers(1, 6), st.integers(1, 14), st.integers(1, 3)
COSTS = st.builds(Costs, *[st.fractions(0, 5, max_denominator=6)] * 6)


def plans(ranks: int, micro_batches: int, chunks: int) -> list[Schedule]:
    """Every schedule there is, of so many micro-batches or the nearest number that it takes."""
    rounded = -(-micro_batches // ranks) * ranks
    return [plan("gpipe", gpipe, ranks, micro_batches), plan("1f1b", one_f_one_b, ranks, micro_batches),
            plan("zb-h1", zb_h1, ranks, micro_batches), plan("interleaved", interleaved, ranks, rounded, chunks),
            plan("pipedream", pipedream, ranks, micro_batches), plan("2bw", pipedream_2bw, ranks, rounded)]


# -- order -----------------------------------------------------------------------------------------------------------

@settings(deadline=None, max_examples=60)
@given(RANKS, BATCHES, CHUNKS)
def test_each_micro_batch_passes_once_through_each_stage_in_order(ranks, micro_batches, chunks):
    for each in plans(ranks, micro_batches, chunks):
        assert list(problems(each)) == [], each.name
        computed = Counter((action.kind, action.stage) for actions in each.actions for action in actions)
        assert all(computed["F", stage] == each.micro_batches for stage in range(each.stages))


def one_rank(*kinds: str) -> Schedule:
    return Schedule("by hand", [[Action(kind, 0, 0) for kind in kinds]], [0], 1)


@pytest.mark.parametrize("kinds, words", [
    (("F", "F", "B"), "rank 0 does F0 of stage 0 twice"),
    (("B",), "has no F"),
    (("F",), "must have either one B, or an I and a W"),
    (("F", "I"), "must have either one B, or an I and a W"),
    (("F", "B", "I", "W"), "must have either one B, or an I and a W"),
    (("B", "F"), "B stands before F"),
    (("F", "W", "I"), "W stands before I"),
    (("F", "B", "W"), "must have either one B, or an I and a W"),
    (("F", "STEP", "B"), "STEP stands before B"),
    (("F", "B", "NOP"), "rank 0 has NOP0 of stage 0, and 'NOP' is none of F, B, I, W, STEP, SEND F"),
    (("F", "B", "SEND F"), "rank 0 has SEND F0 of stage 0, and there is no other rank at its other end"),
    (("RECV F", "F", "B"), "rank 0 has RECV F0 of stage 0, and there is no other rank at its other end"),
])
def test_a_wrong_order_is_a_sentence(kinds, words):
    (problem,) = problems(one_rank(*kinds))
    assert words in problem


@pytest.mark.parametrize("kinds, words", [
    (("F1", "F0", "B1", "B0"), "micro-batch 0 in stage 1 on rank 0: F stands before F of stage 0, which makes its input"),
    (("F0", "F1", "B0", "B1"), "B stands behind B of stage 0, which needs its gradient"),
    (("F0", "F1", "I0", "I1", "W1", "W0"), "I stands behind I of stage 0, which needs its gradient"),
])
def test_stages_of_one_rank_hand_over_in_order(kinds, words):
    """Without a transfer no message would wait for what is not there yet."""
    (problem,) = problems(Schedule("by hand", [[Action(kind, int(stage), 0) for kind, stage in kinds]], [0, 0], 1))
    assert words in problem


def test_micro_batches_that_are_not_there_are_a_sentence():
    assert list(problems(Schedule("by hand", [[Action(kind, 0, k) for k in range(3) for kind in "FB"]], [0], 2))) == [
        f"rank 0 has {kind}2 of stage 0, and there are 2 micro-batches, numbered from 0" for kind in "FB"]


def test_transfers_stand_where_their_tensor_is_there():
    right = plan("1f1b", one_f_one_b, 2, 2)
    late = [[action for action in actions if action.kind != "RECV F"] for actions in right.actions]
    assert list(problems(right._replace(actions=late))) == [
        f"micro-batch {k} in stage 1 on rank 1 has no RECV F" for k in range(2)]
    early = [sorted(actions, key=lambda action: action.kind != "SEND F") for actions in right.actions]
    assert "F stands before F" not in "".join(problems(right)) and any(
        "SEND F stands before F" in problem for problem in problems(right._replace(actions=early)))
    elsewhere = right._replace(owner=[1, 0])
    assert any("does not have stage 0" in problem for problem in problems(elsewhere))


def test_stages_on_one_rank_need_no_transfer():
    for compute, chunks in ((one_f_one_b, 1), (interleaved, 3)):
        assert not any(action.is_transfer for action in plan("alone", compute, 1, 4, chunks).actions[0])
    vee = [0, 1, 1, 0]  # stages of a V: the rank of the turn hands over to itself
    kinds = [action.kind for action in with_transfers([Action("F", 1, 0), Action("F", 2, 0)], vee)]
    assert kinds == ["RECV F", "F", "F", "SEND F"]


@pytest.mark.parametrize("make, words", [
    (lambda: plan("1f1b", one_f_one_b, 0, 4), "ranks is 0"),
    (lambda: plan("1f1b", one_f_one_b, 2, 0), "micro_batches is 0"),
    (lambda: plan("1f1b", one_f_one_b, 2, 2.0), "micro_batches is 2.0"),
    (lambda: plan("1f1b", one_f_one_b, 2, 4, 2), "1f1b has one stage per rank, and chunks is 2"),
    (lambda: plan("interleaved", interleaved, 2, 3, 2), "a multiple of 2, and not 3"),
    (lambda: plan("2bw", pipedream_2bw, 3, 6, every=2), "at least the 3 ranks"),
    (lambda: plan("2bw", pipedream_2bw, 2, 5), "divide the micro-batches"),
    (lambda: deadlock(plan("1f1b", one_f_one_b, 2, 2), "lazy"), "sends is 'lazy'"),
    (lambda: simulate(plan("1f1b", one_f_one_b, 2, 2), Costs(forward=0.5)), "forward costs 0.5"),
    (lambda: simulate(plan("1f1b", one_f_one_b, 2, 2), Costs(backward=-1)), "backward costs -1"),
])
def test_what_makes_no_schedule_is_refused(make, words):
    with pytest.raises(BadInput, match=words):
        make()


# -- what is held ----------------------------------------------------------------------------------------------------

@settings(deadline=None)
@given(RANKS, BATCHES, st.integers(1, 4))
def test_in_flight_is_the_formulas(ranks, micro_batches, groups):
    for rank in range(ranks):
        held = {compute: in_flight(compute(ranks, micro_batches, rank)) for compute in (gpipe, one_f_one_b, zb_h1)}
        assert held == {gpipe: micro_batches, one_f_one_b: min(ranks - rank, micro_batches),
                        zb_h1: min(ranks, micro_batches)}
        for chunks in (2, 3):  # in activations of a chunk, a v-th of the rank's
            most = min(groups * ranks * chunks, (chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1)
            assert in_flight(interleaved(ranks, groups * ranks, rank, chunks)) == most


def test_bytes_in_flight_count_each_stage_by_itself():
    timing = simulate(plan("interleaved", interleaved, 2, 4, 2))
    assert timing.activation_bytes(0, [1, 0, 0, 0]) == 4  # chunk 0: all four forwards before its first backward
    assert timing.activation_bytes(1, [0, 100, 0, 7]) == max(2 * 100 + 7, 3 * 100)
    assert timing.in_flight(0) == 5


# -- how long it takes -----------------------------------------------------------------------------------------------

@settings(deadline=None, max_examples=60)
@given(RANKS, BATCHES, st.integers(1, 4), COSTS)
def test_bubbles_are_the_formulas(ranks, micro_batches, chunks, costs):
    p, m, rounded = ranks, micro_batches, -(-micro_batches // ranks) * ranks
    tF, tB, tI, tW = costs.forward, costs.backward, costs.input, costs.weight
    costs = Costs(tF, tB, tI, tW)  # no transfers
    for compute in (gpipe, one_f_one_b):
        timing = simulate(plan("", compute, p, m), costs)
        assert {timing.idle(rank) for rank in range(p)} == {(p - 1) * (tF + tB)}
        assert timing.bubble == (Fraction(p - 1, m + p - 1) if tF + tB else 0)
    timing = simulate(plan("", interleaved, p, rounded, chunks), Costs(tF / chunks, tB / chunks))
    assert timing.bubble == (Fraction(p - 1, chunks * rounded + p - 1) if tF + tB else 0)


@settings(deadline=None)
@given(RANKS, BATCHES)
def test_the_bubble_of_zb_h1_is_a_third(ranks, micro_batches):
    p, m = ranks, micro_batches + ranks  # it needs p micro-batches to fill the bubble
    unit = simulate(plan("", zb_h1, p, m))
    assert {unit.idle(rank) for rank in range(p)} == {p - 1} and unit.bubble == Fraction(p - 1, 3 * m + p - 1)
    assert simulate(plan("", one_f_one_b, p, m)).idle(0) == 3 * (p - 1)
    for tI, tW in ((2, 1), (Fraction(3, 2), Fraction(1, 2))):  # W shorter than I: (p-1)(tF + tI - tW)
        costs = Costs(forward=1, input=tI, weight=tW)
        assert simulate(plan("", zb_h1, p, m), costs).idle(0) == (p - 1) * (1 + tI - tW)


def test_zero_bubble_is_not_zero():
    """What the name counts is the time inside each rank's own span; the last rank begins and the first one ends late."""
    timing = simulate(plan("", zb_h1, 4, 8))
    assert all(timing.idle_inside(rank) < timing.idle(rank) for rank in range(1, 4)) and timing.bubble == Fraction(1, 9)


def test_1f1b_is_not_faster_than_gpipe():
    for transfer in (0, Fraction(1, 3)):
        gp, fb = (simulate(plan("", compute, 4, 8), Costs(transfer=transfer)) for compute in (gpipe, one_f_one_b))
        assert gp.makespan <= fb.makespan and gp.in_flight(0) == 8 and fb.in_flight(0) == 4


def test_costs_may_differ_by_stage_and_transfers_take_time():
    uneven = simulate(plan("", gpipe, 2, 3), Costs(forward=(1, 2), backward=(2, 4)))
    assert uneven.makespan == 1 + 3 * 2 + 3 * 4 + 2 and uneven.bubble == Fraction(21 - 9 + 21 - 18, 42)
    late = simulate(plan("", gpipe, 2, 1), Costs(transfer=Fraction(1, 2)))
    assert late.makespan == 1 + Fraction(1, 2) + 1 + 2 + Fraction(1, 2) + 2
    one_link = simulate(plan("", gpipe, 2, 3), Costs(forward=1, backward=0, transfer=5))  # tensors queue on a link
    assert [span.start for span in one_link.of_rank(1) if span.action.kind == "F"] == [6, 11, 16]


def test_pipedream_has_a_bubble_only_at_its_ends():
    timing = simulate(plan("", pipedream, 3, 40))
    assert timing.idle(0) == 2 * 3 and timing.bubble == Fraction(2, 42)


# -- deadlock --------------------------------------------------------------------------------------------------------

@settings(deadline=None, max_examples=60)
@given(RANKS, BATCHES, CHUNKS)
def test_no_schedule_deadlocks(ranks, micro_batches, chunks):
    for each in plans(ranks, micro_batches, chunks):
        assert deadlock(each) is None and deadlock(each, "bounded") is None and deadlock(each, "nccl") is None, each.name
        if chunks == 1 or each.name != "interleaved":
            assert deadlock(each, "paired") is None, each.name
        simulate(each)


def test_1f1b_deadlocks_where_sends_wait_one_by_one():
    """Both neighbours send at the same time: why Megatron sends and receives in one call."""
    each = plan("1f1b", one_f_one_b, 2, 2)
    assert deadlock(each, "blocking") == (
        "a ring of waits, with blocking sends: rank 0 stands in SEND F1 of stage 0 until rank 1 does RECV F1 of stage 1; "
        "rank 1 stands in SEND B0 of stage 1 until rank 0 does RECV B0 of stage 0")
    assert deadlock(plan("gpipe", gpipe, 4, 8), "blocking") is None
    assert "paired" in deadlock(plan("interleaved", interleaved, 2, 4, 2), "paired")


@pytest.mark.parametrize("chunks", (1, 2, 3))
@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_with_one_communicator_nccl_runs_gpipe_alone(ranks, chunks):
    """All others need one for each link. Neither of a link's ranks has two links in one, so a stream has one link."""
    for each in plans(ranks, 2 * ranks, chunks):
        stands = deadlock(each, "one communicator")
        assert (stands is None) == (each.name == "gpipe"), each.name
        assert stands is None or stands.startswith("a ring of waits on NCCL: rank ")
        number = communicators(each)
        assert sorted(number) == links(each) and deadlock(each, "nccl") is None
        for rank in range(ranks):
            own = [number[link] for link in number if rank in link[1:]]
            assert len(own) == len(set(own)) and max(own) < 2 * (ranks if each.stages > ranks else 2), each.name
    assert deadlock(plan("1f1b", one_f_one_b, 2, 2), "one communicator") == (
        "a ring of waits on NCCL: rank 0 stands in SEND F1 of stage 0 until rank 1 does RECV F1 of stage 1; "
        "rank 1 stands in SEND B0 of stage 1 until rank 0 does RECV B0 of stage 0")


def test_nccl_takes_messages_of_a_link_in_the_order_in_which_they_were_sent():
    """It has no tags: another order would mix them up."""
    right = plan("1f1b", one_f_one_b, 2, 2)
    other = with_transfers([Action(kind, 1, micro_batch) for micro_batch in (1, 0) for kind in "FB"], [0, 1])
    assert deadlock(right._replace(actions=[right.actions[0], other]), "nccl") == (
        "a ring of waits on NCCL: rank 0 stands in SEND F0 of stage 0 until rank 1 does RECV F0 of stage 1; "
        "rank 1 stands in RECV F1 of stage 1 until rank 0 does SEND F1 of stage 0")
    short = right._replace(actions=[right.actions[0], right.actions[1][:1]])
    assert deadlock(short, "nccl") == ("rank 0 stands in SEND F1 of stage 0 until rank 1 does RECV F1 of stage 1, but rank 1's list "
                                       "has ended without it")


def test_a_ring_of_three_ranks_is_named_without_the_rank_that_only_waits_for_it():
    def act(kind, stage):
        return Action(kind, stage, 0)

    # rank 0 has stage 4, and waits for the ring of the ranks 1, 2 and 3, of which the first has the stages 0 and 3
    ring = Schedule("planted", [[act("RECV F", 4)], [act("RECV F", 3), act("SEND F", 0)], [act("RECV F", 1), act("SEND F", 1)],
                            [act("RECV F", 2), act("SEND F", 2)]], [1, 2, 3, 1, 0], 1)
    sentence = deadlock(ring)
    assert sentence.startswith("a ring of waits") and sentence.count("stands in") == 3 and "rank 0 stands" not in sentence
    ended = ring._replace(actions=[*ring.actions[:1], [], *ring.actions[2:]])
    assert deadlock(ended) == ("rank 0 stands in RECV F0 of stage 4 until rank 1 does SEND F0 of stage 3, but rank 1's list has "
                               "ended without it")


def test_a_second_send_of_a_kind_may_wait_for_the_first():
    """As the pipeline's do, so that what was sent can be freed: a schedule may need sends that never wait."""
    first, second = (Action("SEND F", 0, micro_batch) for micro_batch in range(2))
    gradient = Action("SEND B", 2, 0)  # rank 0 has the stages 0 and 2
    lists = [[first, second, gradient], [gradient.partner, first.partner, second.partner]]
    needs = Schedule("planted", lists, [0, 1, 0], 2)
    assert deadlock(needs) is None
    assert deadlock(needs, "bounded") == (
        "a ring of waits, with bounded sends: "
        "rank 0 stands in SEND F1 of stage 0 until rank 1 does RECV F0 of stage 1; "
        "rank 1 stands in RECV B0 of stage 1 until rank 0 does SEND B0 of stage 2")


def test_a_second_send_has_not_begun_where_the_first_is_not_received():
    """Rank 1 takes the micro-batches in another order: the second one is not under way before the first has arrived."""
    right = plan("1f1b", one_f_one_b, 2, 2)
    other = with_transfers([Action(kind, 1, micro_batch) for micro_batch in (1, 0) for kind in "FB"], [0, 1])
    turned = right._replace(actions=[right.actions[0], other])
    assert not list(problems(turned)) and deadlock(turned) is None
    assert deadlock(turned, "bounded") == (
        "a ring of waits, with bounded sends: "
        "rank 0 stands in SEND F1 of stage 0 until rank 1 does RECV F0 of stage 1; "
        "rank 1 stands in RECV F1 of stage 1 until rank 0 does SEND F1 of stage 0")


def runs_to_its_end(plan: Schedule, seed: int) -> bool:
    """The lists on machines that keep what they were sent, one send of a kind and a pair of ranks at a time, stepped in an
    order drawn at random."""
    draw, at, sent, taken = random.Random(seed), [0] * plan.ranks, set(), set()
    last: dict[tuple, Action] = {}

    def step(rank: int) -> bool:
        if at[rank] == len(plan.actions[rank]):
            return False
        action = plan.actions[rank][at[rank]]
        if action.kind.startswith("RECV"):
            if action not in sent:
                return False
            taken.add(action)
        elif action.is_transfer:
            link = rank, action.kind, plan.peer(action)
            if last.get(link) not in (None, *taken):
                return False
            last[link] = action.partner
            sent.add(action.partner)
        at[rank] += 1
        return True

    while any(step(rank) for rank in draw.sample(range(plan.ranks), plan.ranks)):
        pass
    return all(place == len(actions) for place, actions in zip(at, plan.actions))


def test_the_proof_says_what_machines_do():
    """Of 300 schedules whose lists were shuffled some run to their end, and the proof says so of these, and of no other."""
    draw, ran = random.Random(4), 0
    for number in range(300):
        ranks, micro_batches = draw.choice((2, 3)), draw.choice((2, 3, 4))
        chunks = draw.choice((1, 2)) if not micro_batches % ranks else 1
        each = plan("", interleaved, ranks, micro_batches, chunks) if chunks > 1 else plan("", one_f_one_b, ranks, micro_batches)
        lists = [list(actions) for actions in each.actions]
        for _ in range(draw.choice((1, 2, 4))):
            actions = draw.choice(lists)
            actions.insert(draw.randrange(len(actions)), actions.pop(draw.randrange(len(actions))))
        shuffled = each._replace(actions=lists)
        ends = runs_to_its_end(shuffled, number)
        assert ends == (deadlock(shuffled, "bounded") is None), lists
        ran += ends
    assert 60 < ran < 240


def runs_on_streams(plan: Schedule, number: dict, seed: int) -> bool:
    """The lists on ranks that issue without waiting, each into the streams of its communicators and of its computation, which wait
    for each other through events; one thing that can move, drawn at random, moves at a time."""
    draw, streams, ended, started = random.Random(seed), [], set(), set()
    for rank, actions in enumerate(plan.actions):
        computing, transfers, last = [], {}, {}
        for action in actions:
            if not action.is_transfer:
                computing.append(("end", action))
                continue
            link = link_of(plan, action)
            if action.kind.startswith("SEND"):
                computing += [("wait", last[link])] if link in last else []
                last[link] = action
            event = ("event", rank, len(computing))
            computing.append(("end", event))
            transfers.setdefault(number[link], []).extend([("wait", event), ("start", action), ("wait", action)])
            computing += [("wait", action)] * action.kind.startswith("RECV")
        streams += [computing, *transfers.values()]
    while any(streams):
        def can(stream):
            return stream and (stream[0][0] != "wait" or stream[0][1] in ended)
        ready = [stream for stream in streams if can(stream)]
        if not ready:
            return False
        what, item = draw.choice(ready).pop(0)
        if what == "end":
            ended.add(item)
        elif what == "start":
            started.add(item)
            if item.partner in started:
                ended.update((item, item.partner))
    return True


def test_the_proof_for_nccl_says_what_streams_do():
    """Of shuffled schedules, with one communicator and with those of the links; the latter run exactly where gloo does."""
    draw, ran = random.Random(5), Counter()
    for seed in range(200):
        ranks, chunks = draw.choice((2, 3)), draw.choice((1, 2))
        each = draw.choice((plan("", interleaved, ranks, ranks * draw.choice((1, 2)), chunks), plan("", gpipe, ranks, ranks)))
        lists = [list(actions) for actions in each.actions]
        for _ in range(draw.choice((0, 1, 2, 4))):
            actions = draw.choice(lists)
            actions.insert(draw.randrange(len(actions)), actions.pop(draw.randrange(len(actions))))
        shuffled = each._replace(actions=lists)
        for sends, number in (("one communicator", dict.fromkeys(links(each), 0)), ("nccl", communicators(each))):
            ends = runs_on_streams(shuffled, number, seed)
            assert ends == (deadlock(shuffled, sends) is None), (sends, lists)
            ran[sends] += ends
        assert (deadlock(shuffled, "nccl") is None) == (deadlock(shuffled, "bounded") is None), lists
    assert 10 < ran["one communicator"] < ran["nccl"] < 190


def test_planted_deadlocks_are_found_and_not_simulated():
    """Each rank waits for the other's gradient or activation before it sends its own."""
    right = plan("1f1b", one_f_one_b, 2, 2)
    swapped = [list(actions) for actions in right.actions]
    place = swapped[0].index(Action("SEND F", 0, 1))
    swapped[0].insert(place + 1, swapped[0].pop(swapped[0].index(Action("RECV B", 0, 1))))
    swapped[0].insert(0, swapped[0].pop(swapped[0].index(Action("RECV B", 0, 0))))
    planted = right._replace(actions=swapped)
    assert deadlock(planted) == ("a ring of waits, with buffered sends: rank 0 stands in RECV B0 of stage 0 until rank 1 does "
                                 "SEND B0 of stage 1; rank 1 stands in RECV F0 of stage 1 until rank 0 does SEND F0 of stage 0")
    with pytest.raises(BadInput, match="1f1b deadlocks: a ring of waits"):
        simulate(planted)
    with pytest.raises(BadInput, match="SEND F0 of stage 1 has no other end: there are 2 stages"):
        deadlock(right._replace(actions=[right.actions[0], [*right.actions[1], Action("SEND F", 1, 0)]]))
    short = right._replace(actions=[right.actions[0][:1], right.actions[1]])
    assert deadlock(short).endswith("but rank 0's list has ended without it")
