"""The check of 22.w1, which chapter 22 asks for itself: a kernel for SGD with momentum, whose mask ends where the shard does."""

import inspect
import linecache

import torch

from ....checks import Trial, exercise

try:
    import triton.language as tl
except ImportError:  # on systems for which there is no triton
    tl = None

AROUND, KEPT = 4096, 7.0  # elements before and behind those of the kernel, and what stands there


def momentum_kernel(p_ptr, g_ptr, m_ptr, n, lr, momentum, BLOCK):
    """One program's part of a step: m = momentum·m + g, and p = p - lr·m.

    p_ptr, g_ptr, m_ptr: where the first of n elements is, fp32. The programs have numbers,
    `tl.program_id(0)`, and program i has the BLOCK elements from i·BLOCK on.
    Read and write each element once, and none behind the last.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < n
    m = momentum * tl.load(m_ptr + at, mask=real) + tl.load(g_ptr + at, mask=real)
    tl.store(m_ptr + at, m, mask=real)
    tl.store(p_ptr + at, tl.load(p_ptr + at, mask=real) - lr * m, mask=real)


def changed(old, new):
    """The kernel with another piece of source. The interpreter reads the source again, so it has to be somewhere."""
    source, name = inspect.getsource(momentum_kernel), f"<momentum kernel, {new!r} for {old!r}>"
    assert old in source
    source = source.replace(old, new)
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    exec(compile(source, name, "exec"), globals(), made := {})
    return made["momentum_kernel"]


def begin(answer):
    """Call it as the plain function that it is. A blank ends here, and so does ours where it is not allowed; a kernel cannot run like this."""
    try:
        answer(None, None, None, 1, 0.5, 0.75, 1)
    except NotImplementedError:
        raise
    except Exception:
        answer.error, answer.misfit = None, ""


def launched(answer, n, block):
    """What stands where after a step, and what was read and written."""
    from triton.runtime.errors import InterpreterError

    from .....kernels.interpreted import interpreted
    from .....kernels.traffic import of_interpreter

    begin(answer)
    source = torch.Generator().manual_seed(n)
    whole = torch.full((3, n + 2 * AROUND), KEPT)
    p, g, m = (row[AROUND : AROUND + n].copy_(torch.randn(n, generator=source)) for row in whole)
    run = interpreted(getattr(answer, "fn", answer))
    try:
        moved = of_interpreter(lambda: run[(-(-n // block),)](p, g, m, n, 0.5, 0.75, BLOCK=block))
    except InterpreterError as error:
        raise error.__cause__ or error from None
    outside = torch.cat([whole[:, :AROUND], whole[:, AROUND + n :]], 1)
    return {"outside": int((outside != KEPT).sum()), "m": m.clone(), "p": p.clone(), "read": moved.read, "written": moved.written}


exercise(
    "22.w1", "A kernel", minutes=15, difficulty=2, own=momentum_kernel,
    trials=[Trial([(1000, 256), (512, 256), (3, 256), (130, 64)], launched, close=1e-5)],
    mistakes={
        "no mask": changed("real = at < n", "real = at >= 0"),
        "stores not masked": changed(" - lr * m, mask=real)", " - lr * m)"),
        "first block": changed("tl.program_id(0) * BLOCK + ", ""),
        "one element a program": changed("tl.program_id(0) * BLOCK", "tl.program_id(0)"),
        "momentum not kept": changed("    tl.store(m_ptr + at, m, mask=real)\n", ""),
        "gradient alone": changed("- lr * m,", "- lr * tl.load(g_ptr + at, mask=real),"),
        "read again": changed("- lr * m,", "- lr * tl.load(m_ptr + at, mask=real),"),
        "last one lost": changed("at < n", "at < n - 1"),
        "one too many": changed("at < n", "at <= n"),
        "uphill": changed("- lr * m,", "+ lr * m,"),
        "an average": changed("+ tl.load(g_ptr + at, mask=real)", "+ (1 - momentum) * tl.load(g_ptr + at, mask=real)"),
    })(momentum_kernel)
