"""Triton kernels where they are worth it, each beside the same computation in plain PyTorch, and the bytes both move.

    adamw         FusedAdamW: one update of each stretch of a flat shard, by the kernel or in plain PyTorch
    adamw_kernel  fused_adamw, that kernel
    layernorm     layer_norm and rms_norm, forward and backward
    flash         flash_attention: forward, small enough to read, with its log-sum-exp
    quantize      quantize_rows, sum_of_rows: blocks of 8 or 4 bits and their sum, which ZeRO++ takes on a GPU
    int8_product  int8_product: a matrix of 8-bit numbers times a vector, which decoding waits for
    linear_loss   linear_cross_entropy: a head and its loss in chunks of tokens, in plain PyTorch
    traffic       counts the bytes that PyTorch operations, and kernels in the interpreter, read and write
    interpreted   interpreted: one kernel in the interpreter, in a process whose other kernels are compiled
    machine_code  compile_for: loads, stores, spills and matrix instructions on a GPU that one does not have
    bandwidth     measure_bandwidth: on a GPU, ours and torch's as a fraction of what the memory can do

Both kernels do a few operations per element, and a GPU could do hundreds in the time in which the element comes from
memory. So what counts is how often memory is read and written, and a fused kernel does both only once.

They are compiled for a GPU. If TRITON_INTERPRET=1 is in the environment before triton is first imported, they also run
on a CPU, in Triton's interpreter, which is a thousand times slower than PyTorch and meant for reading and debugging.
Nothing here is imported before it is used, so the rest of the package does not need triton; nor does `adamw`.
"""
