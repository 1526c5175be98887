"""The check of 24.1: what the models of PPO and GRPO hold."""

from ....checks import FORMULAS, exercise

CASES = [(1000, 1, 0, 0, 4), (1000, 2, 2, 0, 8), (1000, 2, 2, 1, 8), (1000, 2, 2, 2, 8), (1000, 2, 2, 3, 8), (64, 1, 1, 3, 2), (64, 1, 1, 2, 16)]


@exercise(
    "24.1", "Four models", minutes=15, difficulty=1, answer="model_bytes", cases=CASES,
    replaces=(*FORMULAS, "zerocourse.formulas.models.rl_states:*"),
    mistakes={
        "all are trained": {"asked_as": lambda parameter, whole: whole},
        "one of each": {"times": lambda count: min(count, 1)},
        "asked ones whole": {"cut_asked": False},
        "asked ones always cut": {"always": True},
        "gradients of asked ones": {"asked_as": lambda parameter, whole: 2 * parameter},
        "stage 2's gradients": {"cut_gradients": 3},
        "stage 1's gradients": {"cut_gradients": 1},
        "all of it cut": {"cut_all": True},
    })
def bytes_of_models(params, trained, asked, stage, ranks, *, asked_as=lambda parameter, whole: parameter, times=lambda count: count, cut_asked=True,
                    always=False, cut_gradients=2, cut_all=False):
    """Bytes."""
    parameter = 2 * params / (ranks if stage == 3 or cut_all else 1)
    gradient = 2 * params / (ranks if stage >= cut_gradients or cut_all else 1)
    states = 12 * params / (ranks if stage >= 1 or cut_all else 1)
    whole = parameter + gradient + states
    held = parameter if cut_asked else 2 * params
    held = 2 * params / ranks if always else held
    return times(trained) * whole + times(asked) * asked_as(held, whole)
