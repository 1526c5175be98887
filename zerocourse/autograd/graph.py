"""What autograd is asked about the backward that runs."""

from ..comm.torch_private import graph_task_id, will_execute


def current_backward() -> int:
    """A number of the backward that this thread is inside of; -1 outside. Reentrant ones have numbers of their own."""
    return graph_task_id()


def will_run(node) -> bool:
    """Will the running backward come to this node of the graph, and leave its gradient at the parameter?"""
    try:
        return will_execute(node)
    except RuntimeError:  # torch.autograd.grad() asked for this gradient: it goes to the caller and not to the parameter
        return False
