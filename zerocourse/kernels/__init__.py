"""Triton kernels where they pay: each beside its plain PyTorch twin, and the bytes that both move.

    adamw       FusedAdamW: one kernel over each stretch of a flat shard
    layernorm   layer_norm, forward and backward
    traffic     counts the bytes that PyTorch operations, and kernels in the interpreter, read and write
    bandwidth   measure_bandwidth: on a GPU, ours and torch's as a fraction of what the memory can do

Both kernels do a handful of operations an element, and a GPU could do hundreds in the time that the element takes to
come from memory. So what counts is how often memory is read and written, and fusing is what makes that once.

They are compiled for a GPU. On a CPU they run in Triton's interpreter, a thousand times slower than PyTorch and good
for reading and debugging, when TRITON_INTERPRET=1 was in the environment before triton was first imported. Nothing
here is imported unless it is asked for, so the rest of the package does not need triton.
"""
