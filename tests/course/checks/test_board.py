"""The numbers on the board: made by the examiner, ours are what our solutions get, and no time is among them."""

import pytest
from exercise_sets import answers_to

from tools.exercises import ROOT
from zerocourse.course.checks import check, exercises

ON_BOARD = {id: asked for id, asked in exercises().items() if asked.board}


def one_by_one(edges, held, limit):
    """Greedy, and within the limit."""
    def moved(host):
        return sum(size for start, end, size in edges if (start in host) != (end in host))
    host = set()
    for name in sorted(held, key=held.get, reverse=True):
        if moved(host | {name}) <= limit:
            host.add(name)
    return sum(size for name, size in held.items() if name not in host)


def one_f_one_b(ranks, micro_batches, rank):
    """Whole backwards, each with the W at once."""
    warm_up = min(ranks - 1 - rank, micro_batches)
    actions = [("F", k) for k in range(warm_up)]
    for k in range(micro_batches):
        actions += [("F", warm_up + k)] * (warm_up + k < micro_batches) + [("B", k)]
    return actions


def keep_all(operations, budget):
    return [each["name"] for each in operations]


def keep_none(operations, budget):
    return []


def many_pieces():
    return {"stage": 1, "micro_batches": 4, "checkpointing": True, "bucket_size": 4000}


def half_precision():
    import torch
    return {"stage": 2, "micro_batches": 4, "checkpointing": True, "bucket_size": 4000, "in_flight": 0, "param_dtype": torch.bfloat16}


def all_ranks(ranks, card):
    return ranks if 16 * 8e9 / ranks + 10e9 <= card else None


LEGAL = [("14.6", one_by_one, 1.05), ("17.5", one_f_one_b, 1.2), ("13.7", keep_all, 1.5), ("20.2", all_ranks, 10)]
NO_NUMBER = [("13.7", keep_none, "over budget"), ("14.6", lambda edges, held, limit: 0, "no limit"), ("7.8", half_precision, "half precision"),
             ("20.2", lambda ranks, card: 1, None), ("17.5", lambda ranks, micro_batches, rank: [], None),
             ("14.6", lambda edges, held, limit: "few", None)]


def test_these_exercises_are_on_the_board():
    assert list(ON_BOARD) == ["7.8", "13.7", "14.6", "17.5", "20.2", "21.4", "22.4", "23.4", "24.4"]


@pytest.mark.parametrize("id", ON_BOARD)
def test_ours_is_what_the_solution_gets_and_not_below_the_bound(id):
    asked = ON_BOARD[id]
    verdict = check(id, *answers_to(asked, ROOT / "solutions"))
    assert verdict.passed and list(verdict.numbers) == [board.what for board in asked.board]
    for board in asked.board:
        assert verdict.numbers[board.what] == pytest.approx(board.ours, rel=1e-3) and board.bound <= board.ours


@pytest.mark.parametrize("id, answer, times", LEGAL)
def test_an_answer_within_the_rules_has_a_number_though_it_is_not_good_enough(id, answer, times):
    verdict = check(id, answer)
    board, = ON_BOARD[id].board
    assert not verdict.passed and verdict.numbers[board.what] > times * board.ours, verdict


def test_over_one_budget_only_the_other_number_counts():
    """Stage 1 keeps the whole gradient, but sends less: its peak is too high for a number of what it sends."""
    verdict = check("7.8", many_pieces)
    assert not verdict.passed and verdict.numbers.keys() == {"bytes held at the peak"} and \
        verdict.numbers["bytes held at the peak"] > 792_000, verdict


@pytest.mark.parametrize("id, answer, code", NO_NUMBER)
def test_an_answer_against_the_rules_has_no_number(id, answer, code):
    verdict = check(id, answer)
    assert not verdict.passed and verdict.numbers == {} and code in (None, verdict.code), verdict


def test_a_blank_has_no_number():
    def keep(operations, budget):
        raise NotImplementedError
    verdict = check("13.7", keep)
    assert verdict.status == "not done" and verdict.numbers == {}
