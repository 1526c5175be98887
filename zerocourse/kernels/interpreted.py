"""One kernel in Triton's interpreter, in a process whose other kernels are compiled.

    run = interpreted(kernel)
    run[(4,)](p, g, n, BLOCK=256)      # on CPU tensors, four programs one after the other

It is for kernels of loads, stores and arithmetic. What Triton itself has written as kernels, such as `tl.sum`, needs a process with
TRITON_INTERPRET=1.
"""

from collections.abc import Callable

from .backend import tl


def interpreted(kernel: Callable):
    """A kernel, which `triton.jit` has taken or not, to be launched as `interpreted(kernel)[grid](...)`.

    Parameters in capitals are constants of the compiler, with and without an annotation that says so.
    """
    from triton.runtime.interpreter import InterpretedFunction

    made = InterpretedFunction(getattr(kernel, "fn", kernel))
    rewritten = made.rewrite()  # from its source, as the interpreter will run it
    rewritten.__annotations__ = {name: tl.constexpr for name in made.arg_names if name.isupper()}
    return made
