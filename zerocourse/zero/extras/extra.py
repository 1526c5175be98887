"""The moments of a training step at which an extra may have something to do."""

from ..buffer import FlatBuffer


class Extra:
    """One mechanism beside the stage; every method does nothing until a subclass says otherwise.

    An extra that must know what only some ranks know asks a question: a name, and a list of flags in an order that all
    ranks share. The answer has a flag for whatever is true on any of them (see `agreement`).
    """

    def before_forward(self) -> None:
        """The model is about to compute."""

    def before_reshard(self, flat: FlatBuffer) -> None:
        """Stage 3 is about to free the buffer's parameters."""

    def before_backward(self) -> None:
        """A backward begins: no gradient has come yet."""

    def after_backward(self) -> None:
        """Autograd has brought all gradients of this backward; not all are reduced."""

    def questions(self) -> dict[str, list[bool]]:
        """For the agreement at the end of a backward."""
        return {}

    def answered(self, answers: dict[str, list[bool]]) -> None:
        """What is true on any rank."""

    def check_step(self) -> None:
        """A step is asked for. Raise BadInput here for what must not be stepped: nothing has changed yet."""

    def before_step(self) -> None:
        """The gradients are reduced."""

    def after_step(self) -> None:
        """The parameters are new."""
