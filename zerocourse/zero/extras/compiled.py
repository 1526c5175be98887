"""Hooks that torch.compile leaves alone. Needed by: torch.compile(model), before or after shard."""

from torch._C._dynamo import eval_frame


def eager(hook):
    """torch.compile breaks its graph at this function, and runs it, and whatever it calls, as it is.

    These are the two marks that `torch.compiler.disable` would leave, without the compiler, which that would load. A wrapper
    that calls it later would be compiled itself, once for all hooks: it would be guarded by the closure of one of them, fail
    for the next model, and be compiled anew for each hook until the compiler gives up.
    """
    skip = eval_frame._FrameAction.SKIP
    hook._torchdynamo_disable = True
    eval_frame.set_code_exec_strategy(hook.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return hook
