"""The check of 22.6: find the bug in a fused Adam, which steps many parameters and counts the steps of one."""

from ....checks import exercise

NAMES = ("a", "b", "c")
CASES = [(NAMES, [NAMES, NAMES]),
         (NAMES, [("a", "b"), ("a", "b"), NAMES, NAMES]), (NAMES, [("a",), ("b",), ("a", "c"), NAMES]),
         (NAMES, [("b",), (), ("b", "c")]), (NAMES, [("a",), ("a",), ("c", "b")]), (("a",), [("a",), ("a",), ("a",)]),
         (NAMES, [("c", "a"), ("c", "a"), NAMES])]


def counting(names, history, used):
    steps, seen = dict.fromkeys(names, 0), []
    for number, with_gradient in enumerate(history):
        for name in with_gradient:
            steps[name] += 1
        seen.append({name: used(steps, name, with_gradient, number) for name in with_gradient})
    return seen


@exercise(
    "22.6", "Find the bug: whose step is it?", minutes=20, difficulty=2, cases=CASES,
    mistakes={
        "the last one's": {"used": lambda steps, name, with_gradient, number: steps[with_gradient[-1]]},
        "the first one's": {"used": lambda steps, name, with_gradient, number: steps[with_gradient[0]]},
        "the largest": {"used": lambda steps, name, with_gradient, number: max(steps.values())},
        "the smallest": {"used": lambda steps, name, with_gradient, number: min(steps[each] for each in with_gradient)},
        "the training's": {"used": lambda steps, name, with_gradient, number: number + 1},
        "from zero": {"used": lambda steps, name, with_gradient, number: steps[name] - 1},
        "all of them": {"used": lambda steps, name, with_gradient, number: sum(steps.values())},
    })
def steps_used(names, history, *, used=lambda steps, name, with_gradient, number: steps[name]):
    """[{name: the number of its step}], for each step of the training."""
    return counting(names, history, used)
