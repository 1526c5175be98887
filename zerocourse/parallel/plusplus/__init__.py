"""ZeRO++ (Wang et al. 2023, arXiv 2306.10209): stage 3 where the links between nodes are slow.

    comms = MeshComms(Mesh({"nodes": 2, "node": 8}, per_node=8))
    model, optimizer = zero_plus_plus(model, optimizer, comms)           # all three of them; then train as ever

Stage 3 sends all parameters twice and all gradients once, 3Ψ, over every link. Between nodes ZeRO++ sends a quarter of it:

    qwZ   weights are gathered in 8 bits                                        0.5Ψ of bf16, in the forward
    hpZ   each node keeps a copy of the weights, cut among its own ranks        0, in the backward
    qgZ   gradients are reduced in 4 bits, inside the nodes before between      0.25Ψ

    blocks        numbers in 8 or 4 bits, block by block, each with a scale
    two_level     a gather and a reduction in two hops: between nodes a rank meets only its counterparts
    plus_plus     `zero_plus_plus`: the functions that stage 3 is given in place of its own
"""

from .plus_plus import ZeroPlusPlus, zero_plus_plus

__all__ = ["ZeroPlusPlus", "zero_plus_plus"]
