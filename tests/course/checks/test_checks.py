"""Whatever an answer does, a check gives a sentence: it never raises, hangs, or leaves a process behind."""

import json
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from zerocourse.comm import Comm
from zerocourse.course.chapters.zero3.checks import zero3_budget, zero3_stack
from zerocourse.course.checks import check, exercises, harness, judge, progress, written_cells
from zerocourse.course.checks.compare import difference, same
from zerocourse.course.checks.delegation import Delegated, Guard, functions
from zerocourse.course.checks.exercise import Exercise, find
from zerocourse.course.checks.harness import When, mutants
from zerocourse.course.checks.lab import Lab, _failed_report, _ranks
from zerocourse.course.checks.trace import Trial
from zerocourse.course.checks.verdict import Verdict
from zerocourse.formulas import states, volumes

RIGHT = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}


def right(params, stage, ranks):
    whole, shared = RIGHT[stage]
    return whole * params + shared * -(-params // ranks)


EVERYTHING = exercises() | written_cells()
MUTANTS = {f"chapter{each.chapter:02}-{id}-{code}-{form}": (each, code, form, answers) for id, each in EVERYTHING.items()
           for code, form, answers in mutants(each)}  # so that -k chapter05 chooses a chapter


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_a_wrong_answer_that_gets_its_own_code(name, monkeypatch):
    """It runs once: the trace that it leaves as an answer is the one that the harness keeps of it."""
    exercise, code, form, answers = MUTANTS[name]
    answer, run = Lab(exercise, answers, own_allowed=True), harness.trace

    def once(lab, trial, seconds=None):
        number = harness._trials(exercise).index(trial)
        return harness._kept_trace(exercise, number, (code, form), answers) if lab is answer else run(lab, trial, seconds)

    monkeypatch.setattr(harness, "trace", once)
    verdict = judge(answer)
    assert (verdict.status, verdict.code) == ("failed", code), verdict


def test_the_reference_of_a_stage_3_from_nothing_trains_like_the_unsharded_model():
    number, each = 0, find("7.7")
    model, speeds = zero3_stack.make_stack(), [0.0] * 32
    data = list(zip(*map(zero3_stack.batches, range(2)), strict=True))
    for last in (0, 2):  # the micro-batches after which the optimizer steps
        for x in (x for of_ranks in data[number:last + 1] for x in of_ranks):
            (zero3_stack.loss_of(model, x) / 2).backward()
        for place, param in enumerate(model.parameters()):
            speeds[place] = zero3_stack.MOMENTUM * speeds[place] + param.grad
            param.data -= zero3_stack.LR * speeds[place]
        model.zero_grad()
        number = last + 1
    trial = next(each.trials[0].by_world())
    seen = [cases[0]["shards"] for cases in harness.trace(Lab(each, [each.reference], own_allowed=True), trial).seen]
    rows = [torch.cat([param.detach().flatten() for param in block.parameters()]) for block in model]
    shares = [(len(row) + 1) // 2 for row in rows]
    for row, *halves in zip(rows, *(of_rank.split(shares) for of_rank in seen), strict=True):
        assert torch.allclose(torch.cat(halves)[:len(row)], row, atol=1e-5)


def test_every_mistake_has_a_mutant():
    for id, exercise in EVERYTHING.items():
        of_exercise = {code for each, code, *_ in MUTANTS.values() if each is exercise}
        assert of_exercise == set(exercise.mistakes), f"{id}: {set(exercise.mistakes) - of_exercise} cannot run"
        assert len(of_exercise) >= 3, f"{id} knows {len(of_exercise)} mistakes"


# --- answers to 1.2, one process ---

def blank(params, stage, ranks):
    raise NotImplementedError("your turn")


def raises(params, stage, ranks):
    return [][params]


def exits(params, stage, ranks):
    sys.exit("bye")


def dies(params, stage, ranks):
    import os
    os._exit(3)


def recurses(params, stage, ranks):
    return recurses(params, stage, ranks)


def asks(params, stage, ranks):
    return int(input("how many? "))


def generates(params, stage, ranks):
    yield 16 * params


def forgets_return(params, stage, ranks):
    right(params, stage, ranks)


def takes_too_little(params):
    return params


def takes_memory(params, stage, ranks):
    return [0] * 10**12


def takes_memory_in_torch(params, stage, ranks):
    return torch.ones(10**11).numel()


def takes_memory_bit_by_bit(params, stage, ranks):
    kept = []
    while True:
        kept.append(bytearray(10**8))


def text(params, stage, ranks):
    return str(right(params, stage, ranks))


def delegates(params, stage, ranks):
    from zerocourse.formulas.states import model_states as mine
    return mine(params, stage, ranks).total_bytes


def delegates_and_hides_it(params, stage, ranks):
    try:
        return states.model_states(params, stage, ranks).total_bytes
    except BaseException:
        return 0


def delegates_to_something_near(params, stage, ranks):
    return next(s for s in range(1) if states.largest_params(params, 3, ranks))


@pytest.mark.parametrize("answer, words", [
    (raises, "`state_bytes(7_500_000_000, 0, 64)`: it raised IndexError: list index out of range (line "),
    (exits, "it ended the program"),
    (dies, "ended with exit code 3"),
    (recurses, "RecursionError"),
    (asks, "it waits for input"),
    (generates, "returned a generator, which cannot be sent"),
    (forgets_return, "does it end without `return`?"),
    (takes_too_little, "it is called as `state_bytes(7_500_000_000, 0, 64)`, and takes_too_little() takes 1"),
    (takes_memory, "it ran out of memory"),
    (takes_memory_in_torch, "can't allocate memory"),
    (takes_memory_bit_by_bit, "it ran out of memory"),
    (text, "'120000000000', a str, where 120_000_000_000 is right"),
    (delegates, "calls the package's own `zerocourse.formulas.states.model_states`: write it yourself"),
    (delegates_and_hides_it, "calls the package's own `zerocourse.formulas.states.model_states`: write it yourself"),
    (delegates_to_something_near, "calls the package's own `zerocourse.formulas.states.largest_params`"),
    (3, "call it as `check(\"1.2\", state_bytes)`: it needs a function, and was given int"),
    (None, "was given NoneType"),
])
def test_every_failure_has_a_sentence(answer, words):
    verdict = check("1.2", answer)
    assert verdict.status == "failed" and words in verdict.message, verdict
    assert check("1.2", right).passed  # the next answer finds everything as it should be


def test_a_blank_is_not_done_and_says_which():
    def uses_the_blank(params, stage, ranks):
        return blank(params, stage, ranks)

    assert check("1.2", uses_the_blank) == \
        Verdict("1.2", "not done", "`blank` is still a blank", code="not done")


def test_an_error_of_torch_is_no_blank():
    def sparse(params, stage, ranks):
        return torch.ones(2, 2).to_sparse().flip(0)

    assert "NotImplementedError" in check("1.2", sparse).message and check("1.2", sparse).status == "failed"


def test_an_endless_loop_ends():
    def endless(params, stage, ranks):
        while True:
            pass

    began = time.monotonic()
    verdict = check("1.2", endless, timeout=1.5)
    assert "did not end within 1.5 s" in verdict.message and "in endless" in verdict.message
    assert time.monotonic() - began < 15 and check("1.2", right).passed


@pytest.mark.parametrize("id, answers, words", [
    ("1.9", [right], "there is no exercise '1.9': there are 1.1, 1.2"), ("99", [right], "there are 1.1"),
    ("", [right], "there are"), (None, [right], "there is no exercise 'None'"), ("1.2", [], "was given nothing"),
    ("1.2", [right, right], "a function, and"),
])
def test_what_cannot_be_checked_is_said(id, answers, words):
    verdict = check(id, *answers)
    assert verdict.status == "failed" and words in verdict.message


def test_the_id_may_be_a_number():
    assert check(1.2, right).passed


def test_an_answer_that_cannot_be_sent_is_said():
    lock = threading.Lock()

    def with_a_lock(params, stage, ranks):
        with lock:
            return right(params, stage, ranks)

    assert "the outer variable 'lock'" in check("1.2", with_a_lock).message


def test_what_it_prints_is_kept_and_bounded():
    def prints(params, stage, ranks):
        print("a line", stage)
        print("x" * 10**6)
        return right(params, stage, ranks)

    verdict = check("1.2", prints)
    assert verdict.passed and verdict.printed.startswith("a line 0\n") and len(verdict.printed) <= 4000
    assert "  | a line 0" in str(verdict) and "a line 0" in verdict._repr_html_()


def test_an_answer_that_passed_is_not_run_again():
    def slow(params, stage, ranks):
        time.sleep(0.02)
        return right(params, stage, ranks)

    first = check("1.2", slow)
    began = time.monotonic()
    assert check("1.2", slow) == first and time.monotonic() - began < 0.1
    before = RIGHT[0]
    try:
        RIGHT[0] = (15, 0)  # what the answer uses has changed, so it is another answer
        assert not check("1.2", slow).passed
    finally:
        RIGHT[0] = before


def test_a_thread_that_runs_on_costs_a_new_process():
    def leaves_a_thread(params, stage, ranks):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        return right(params, stage, ranks)

    def threads(params, stage, ranks):
        assert sum(thread.daemon for thread in threading.enumerate()) <= 1, "a thread of the answer before"
        return right(params, stage, ranks)

    assert check("1.2", leaves_a_thread).passed
    assert check("1.2", threads).passed


# --- worlds of several ranks ---

def observe(mean, scale):
    tensor = torch.arange(4.) * (dist.get_rank() + 1) * scale
    mean(tensor)
    return tensor


def seen_of(mean, scale):
    """What a mean leaves in its tensor."""
    return {"tensor": observe(mean, scale)}


def own_mean(tensor, *, divide=True):
    """The mean over the ranks, in place."""
    dist.all_reduce(tensor)
    if divide:
        tensor /= dist.get_world_size()


MEAN = Exercise("99.1", "Mean", 5, 1, ("mean",), replaces=("zerocourse.comm.group:Comm.all_gather",), timeout=6.0,
                reference=own_mean, trials=(Trial([(2.0,)], seen_of, worlds=(2, 3)),),
                mistakes={"never divided": ({"divide": False},)})


def summed(tensor):
    dist.all_reduce(tensor)


def only_rank_0(tensor):
    if dist.get_rank() == 0:
        dist.all_reduce(tensor)


def one_raises(tensor):
    if dist.get_rank() == 1:
        raise ValueError("not today")
    dist.all_reduce(tensor)


def one_dies(tensor):
    import os
    if dist.get_rank() == 1:
        os._exit(4)
    dist.all_reduce(tensor)


def all_stuck(tensor):
    dist.recv(tensor, (dist.get_rank() + 1) % dist.get_world_size())


def swallowed(tensor):
    raise NotImplementedError


@pytest.mark.parametrize("answer, status, words", [
    (own_mean, "passed", "right"),
    (summed, "failed", "is right. You summed and never divided."),
    (only_rank_0, "failed", "1 of the 2 ranks were done. Every rank must call the same collectives"),
    (one_raises, "failed", "on rank 1 of 2, it raised ValueError: not today (line "),
    (one_dies, "failed", "the process of rank 1 of 2 ended with exit code 4"),
    (all_stuck, "failed", "Do all ranks call the same collectives, in the same order"),
    (swallowed, "not done", "`swallowed` is still a blank"),
])
def test_worlds_of_several_ranks(answer, status, words, survivors):
    hangs = answer in (only_rank_0, all_stuck)  # the others end: what limits them is how busy the machine is
    verdict = judge(Lab(MEAN, [answer], timeout=None if hangs else 60))
    assert verdict.status == status and words in verdict.message, verdict


def forgets_a_message(tensor):
    """It arrives when the tensor that waited for it is gone."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own_mean(tensor)
    dist.irecv(torch.zeros(3), (rank - 1) % world_size, tag=5)
    dist.isend(torch.zeros(3), (rank + 1) % world_size, tag=5).wait()


@pytest.mark.parametrize("answer, kept", [(forgets_a_message, False), (summed, True), (own_mean, True)])
def test_a_message_that_nobody_takes_ends_the_ranks(answer, kept):
    """While it lies there, gloo's thread takes a whole core of an idle rank."""
    judge(Lab(MEAN, [answer]))
    assert bool(_ranks(2).pids) is kept


def count_new_modules(answer):
    before = len(sys.modules)
    answer()
    return len(sys.modules) - before


def makes_an_optimizer():
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize("ranks_are_there", [False, True])
def test_what_the_first_optimizer_loads_is_loaded_before_the_clock_starts(ranks_are_there):
    pool = _ranks(2)
    pool.close()
    if ranks_are_there:
        pool.run(len, "")
    lab = Lab(MEAN, [makes_an_optimizer])
    assert max(lab.run(count_new_modules, world=2)) < 5  # else hundreds, and seconds


def test_a_broken_check_does_not_blame_the_answer():
    def broken(tensor):
        return 1 / 0

    verdict = judge(Lab(replace(MEAN, id="99.9", reference=broken), [own_mean]))
    assert verdict.message.startswith("the check itself failed, not your answer")


# --- the harness ---

def area(width, height, *, plus=0, times=1.0, sign=1):
    """The right area."""
    return float(sign * (abs(width) if sign == -1 else width) * height * times + plus)


def broken_at_3(width, height):
    return area(width, height) + (width == 3)


def over_height(width, height):
    return width / (height - height)


AREA = Exercise(
    "99.2", "Area", 5, 1, ("area",), timeout=3.0, reference=area,
    trials=(Trial([(1, 2), (3, 4)]), Trial([(5, 6), (-1, 1)])),
    mistakes={"plus": ({"plus": 1},), "plus at 3": (broken_at_3,), "double": ({"times": 2.0},),
              "unsigned": ({"sign": -1}, lambda width, height: area(abs(width), height)),
              "not a number": ({"times": float("nan")},), "crash": (over_height,),
              "huge": (When("returned", lambda got, want: type(got) is float and got > 10**6),)})


def test_a_right_answer_may_be_told_what_was_measured():
    telling = replace(AREA, tells=lambda seen: f"The last area was {seen[0][-1]['returned']}.")
    verdict = judge(Lab(telling, [lambda width, height: float(width * height)]))
    assert verdict.passed and verdict.message == "of any size. The last area was -1.0."


def test_the_numbers_that_were_beaten_are_told_with_the_best_of_the_session(monkeypatch):
    monkeypatch.setattr(zero3_budget, "_best", [])

    def seen(*peaks):
        return [[{"_peak": peak, "_sent": 500_000}] for peak in peaks]

    assert "held 780,000 bytes (budget 792,000, " in (first := zero3_budget.compared(seen(780_000, 770_000)))
    assert "Your best" not in first and "Your best before was 780,000." in zero3_budget.compared(seen(790_000))
    assert zero3_budget.compared(seen(770_000)).endswith("Your best before was 780,000.")


@pytest.mark.parametrize("answer, code, words", [
    (lambda w, h: w * h + 0.0, None, "of any size."),
    (lambda w, h: w * h + 1.0, "plus", "`area(1, 2)`: it returned 3.0 where 2.0 is right. You added one."),
    (lambda w, h: w * h + (w == 3) + 0.0, "plus at 3", "`area(3, 4)`: it returned 13.0 where 12.0 is right. You added"),
    (lambda w, h: w * h + (w == 3) + (7.0 if h == 6 else 0), "plus at 3", "You added one to a width of 3."),
    (lambda w, h: w * h * 2.0 + (h == 6), "double", "4.0 where 2.0 is right, which is twice as much as the 2 that is"),
    (lambda w, h: w * h + (w == 1) + 0.0, "plus", "`area(1, 2)`: it returned 3.0 where 2.0 is right. You added one."),
    (lambda w, h: abs(w) * h + 0.0, "unsigned", "`area(-1, 1)`: it returned 1.0 where -1.0 is right. You took"),
    (lambda w, h: float("nan"), "not a number", "it returned nan where 2.0 is right. You made it infinite."),
    (lambda w, h: 1 / 0, "crash", "`area(1, 2)`: it raised ZeroDivisionError: division by zero (line "),
    (lambda w, h: {}[w], "raised", "it raised KeyError: 1 (line "),
    (lambda w, h: 10.0**7 + w, "huge", "That is far too large."),
    (lambda w, h: 17.5, "difference", "`area(1, 2)`: it returned 17.5 where 2.0 is right."),
])
def test_the_mistake_is_the_mutant_that_leaves_the_same_trace(answer, code, words):
    verdict = judge(Lab(AREA, [answer]))
    assert verdict.code == code and words in verdict.message, verdict


def test_a_changed_argument_is_told_in_a_whole_sentence():
    def added(numbers):
        return sum(numbers)

    total = Exercise("99.5", "Total", 5, 1, ("total",), reference=added, trials=(Trial([([1, 2],)]),),
                     mistakes={"nothing": (lambda numbers: 0,)})
    verdict = judge(Lab(total, [lambda numbers: numbers.pop() + numbers.pop()]))
    assert verdict.message.startswith("`total([1, 2])`: the values are right, but it changed its argument")
    assert verdict.message.endswith(": work on a copy.")


def test_what_two_mutants_have_in_common_is_told_apart_by_the_other_trials():
    late = replace(AREA, mistakes={"late": (lambda w, h: area(w, h) + (w == 5) + (w < 0),), **AREA.mistakes},
                   trials=AREA.trials[::-1])
    assert judge(Lab(late, [lambda w, h: w * h + 1.0])).code == "plus"
    early = replace(AREA, mistakes={"early": ({"plus": 1},), "unsigned": (lambda w, h: area(w, h) + 2 * (w < 0),)},
                    trials=(Trial([(1, 2)]), Trial([(-1, 1)])))
    assert judge(Lab(early, [lambda w, h: w * h + 2.0 * (w < 0)])).code == "unsigned"


def test_a_right_answer_costs_no_mutant_and_a_second_one_no_reference(monkeypatch):
    harness._kept.clear()
    trips, run = [], Lab.run
    monkeypatch.setattr(Lab, "run", lambda lab, *args, **how: trips.append(lab) or run(lab, *args, **how))
    assert judge(Lab(AREA, [lambda w, h: w * h + 0.0])).passed and len(trips) == 4  # two trials, twice
    assert judge(Lab(AREA, [lambda w, h: h * w + 0.0])).passed and len(trips) == 6
    assert not judge(Lab(AREA, [lambda w, h: 17.5])).passed
    first = len(trips)
    assert not judge(Lab(AREA, [lambda w, h: 18.5])).passed and len(trips) == first + 1


def scaled_on_a_rank(mean, scale):
    """What is left of a tensor of ones."""
    comm, tensor = Comm(timeout=1.0), torch.full((2,), scale * (dist.get_rank() + 1.0))
    mean(tensor, comm)
    return {"here and now": tensor, "bytes": comm.metadata, "_first": "much"}


def mean_of_all(tensor, comm, *, ranks=None, takes_part=lambda rank: True):
    """The mean of all ranks."""
    if takes_part(comm.rank):
        tensor.copy_(comm.all_reduce(tensor) / (ranks or comm.world_size))


SCALED = Exercise("99.3", "Mean", 5, 1, ("mean",), timeout=10.0, reference=mean_of_all,
                  trials=(Trial([(1.0,), (3.0,)], scaled_on_a_rank, worlds=(2, 3)),),
                  mistakes={"sum": ({"ranks": 1},), "stuck": ({"takes_part": lambda rank: rank != 1},)})


def all_but_one(tensor, comm):
    if comm.world_size < 3 or comm.rank < 2 or tensor[0] > 3:
        mean_of_all(tensor, comm)


def sums_and_sends_more(tensor, comm):
    comm.all_reduce(torch.zeros(3))
    tensor.copy_(comm.all_reduce(tensor))


def fails_on_one_rank(tensor, comm):
    if comm.rank == 1:
        raise LookupError("where?")
    mean_of_all(tensor, comm)


@pytest.mark.parametrize("answer, code, words", [
    (mean_of_all, None, "every rank has it."),
    (lambda tensor, comm: tensor.copy_(comm.all_reduce(tensor)), "sum",
     "ones times 1.0 on 2 ranks: rank 0 has [3, 3] here and now, rank 0 has much, all have [3, 3], [3, 3]. You never"),
    (sums_and_sends_more, "sum", "rank 0 has [3, 3] here and now"),
    (all_but_one, "stuck", "ones times 1.0 on 3 ranks: on rank "),
    (all_but_one, "stuck", "rank 2 was in no collective"), (all_but_one, "stuck", "order. Nobody may stay away."),
    (fails_on_one_rank, "raised", "ones times 1.0 on 2 ranks: on rank 1, it raised LookupError: where? (line "),
])
def test_traces_of_several_ranks(answer, code, words):
    verdict = judge(Lab(SCALED, [answer]))
    assert verdict.code == code and words in verdict.message, verdict


def test_a_rank_that_failed_by_itself_comes_before_one_that_waited_for_it():
    reports = [{"kind": "stuck", "value": "it waits"}, {"kind": "raised", "value": "it raised"}]
    failures = [SimpleNamespace(rank=rank, kind="AnswerFailed", message=json.dumps({"printed": "", "clean": True, **each}))
                for rank, each in enumerate(reports)]
    rank, report = _failed_report(SimpleNamespace(failures=failures))
    assert (rank, report.kind) == (1, "raised")


def test_the_first_comm_of_an_answer_costs_no_new_ranks():
    _ranks(2).close()
    assert judge(Lab(replace(SCALED, trials=(replace(SCALED.trials[0], worlds=(2,)),)), [mean_of_all])).passed
    before = _ranks(2).pids
    assert before and judge(Lab(SCALED, [mean_of_all])).passed and _ranks(2).pids == before


def test_an_argument_that_is_changed_is_said_in_one_sentence():
    def empties(rows, ranks):
        held = [8 * sum(max(0, min(n, (rank + 1) * -(-n // ranks)) - rank * -(-n // ranks)) for n in rows)
                for rank in range(ranks)]
        rows.clear()
        return held

    assert check("5.1", empties).message.endswith("changed its argument, which others use as well: work on a copy.")


# --- the parts ---

def test_a_guard_replaces_code_wherever_it_was_imported():
    kept = volumes.sent_bytes
    with Guard(["zerocourse.formulas.volumes:*"]).on(), pytest.raises(Delegated):
        kept(1, 1, 1)
    assert kept(2, 1, 2) == 2 * 2


def test_a_guard_reaches_methods_closures_and_cached_functions():
    found = [fn.__qualname__ for spec in ("zerocourse.comm.group:Comm.all_gather", "zerocourse.launch.ranks:shared")
             for fn in functions(spec)]
    assert found == ["Comm.all_gather", "shared"]
    assert {"exchange", "all_gather"} <= {fn.__name__ for fn in functions("zerocourse.comm.group:Comm.*")}

    def outer(captured=1):
        def inner():
            return captured
        return inner
    inner, number = outer(), 5
    guard = Guard([], [inner, lambda: number])
    with guard.on(), guard.on(), pytest.raises(Delegated):
        inner()
    assert inner() == 1


def test_every_guarded_name_exists():
    for exercise in exercises().values():
        for spec in exercise.replaces:
            assert list(functions(spec)), f"{exercise.id}: {spec} is no function of the package"


@pytest.mark.parametrize("got, want, words", [
    (3, 3, None), (3.0, 3, "the number is right, but it has to be an int"), (True, 1, "a bool"),
    (1, True, "where True"), (0.1 + 0.2, 0.3, None), ([1, 2], (1, 2), None), ([1], (1, 2), "a list of length 1 where length 2 is right"),
    ((1, 3), (1, 2), "at `[1]` it returned 3"),
    ({"a": 1}, {"a": 1, "b": 2}, "no entry 'b'"), ({"a": {"b": 2}}, {"a": {"b": 3}}, "at `['a']['b']` it returned 2"),
    ({"a": 1, "c": 0}, {"a": 1}, "an entry 'c' that should not be there"), (5, {"a": 1}, "where a dictionary is right"),
    (None, 1, "without `return`"), ("x", "x", None), (5, [5], "an int where a list is right"),
    (torch.ones(2), torch.ones(2), None), (torch.ones(2), torch.ones(3), "shape (2,) where (3,)"),
    (torch.ones(2).half(), torch.ones(2), "torch.float16 where torch.float32"),
    ([1.0], torch.ones(1), "where a tensor of shape"), (torch.ones(0), torch.ones(0), None),
    (torch.tensor([1.0, 9.0]), torch.tensor([1.0, 2.0]), "9 at index [1] where 2 is right"),
    (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), "nan at index [1]"),
])
def test_differences_in_words(got, want, words):
    found = difference(got, want)
    assert found is None if words is None else words in found


def test_where_nobody_reads_them_values_are_not_put_into_words():
    """A check compares an answer's trace with those of all mutants, and most of that time went into words."""
    class Spoken:
        spoken = 0

        def __repr__(self):
            self.spoken += 1
            return "a value"

    value, other = Spoken(), Spoken()
    assert same([1, (value, {"a": 2})], [1, (value, {"a": 2})]) and same({"a": value}, {"a": value})
    assert value.spoken == 0 and "a value where a value" in difference(value, other)


def test_tensors_with_nan_and_infinities():
    nan, one, infinite = torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0]), torch.tensor([float("inf"), 1.0])
    assert same(nan, nan.clone(), nan=True) and same(infinite, infinite.clone()) and same(one[:0], one[:0])
    assert not any(same(*pair, nan=True) for pair in ((nan, one), (one, nan), (one, infinite), (infinite, one)))
    assert not same(nan, nan.clone())


def test_nan_is_like_nan_where_traces_are_compared_and_nowhere_else():
    for value in (float("nan"), torch.tensor([1.0, float("nan")])):
        assert same(value, value, nan=True) and not same(value, value)
    assert not same(torch.tensor([2.0, float("nan")]), torch.tensor([1.0, float("nan")]), nan=True)


def test_a_verdict_shows_itself():
    verdict = Verdict("1.1", "failed", "`f(1)`: it returned <2>", "printed <b>")
    assert str(verdict) == repr(verdict) == "✗ 1.1 failed: `f(1)`: it returned <2>\n  | printed <b>"
    html = verdict._repr_html_()
    assert "<code>f(1)</code>: it returned &lt;2&gt;" in html and "printed &lt;b&gt;" in html


def test_progress_knows_this_session():
    check("1.1", blank)
    shown = progress(1)
    assert list(shown) == [f"1.{n}" for n in range(1, 6)] and shown["1.1"].status != "passed"
    assert "1.1  Count GPT-2" in str(shown) and " of 5 passed" in str(shown)


def test_an_exercise_is_found_by_its_id():
    assert find("1.3").answers == ("largest_model",)
