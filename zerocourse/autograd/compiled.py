"""Hooks that torch.compile leaves alone. Needed by: torch.compile(model), before or after shard."""

from ..comm.torch_private import let_compiler_skip


def eager(hook):
    """torch.compile breaks its graph at this function, and runs it, and whatever it calls, as it is.

    These are the two marks that `torch.compiler.disable` would leave, without the compiler, which that would load. A wrapper
    that calls it later would be compiled itself, once for all hooks: it would be guarded by the closure of one of them, fail
    for the next model, and be compiled anew for each hook until the compiler gives up.
    """
    hook._torchdynamo_disable = True
    let_compiler_skip(hook.__code__)
    return hook
