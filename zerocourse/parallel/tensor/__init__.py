"""Tensor parallelism (Shoeybi et al. 2019, Megatron-LM, section 3): the ranks of a group cut each matrix among them.

    model = tensor_parallel(GPT(config), comm)          # in place: cuts the weights, and puts f and g around what was cut
    loss = model(tokens, targets)                       # every rank reads the same tokens, and has the same loss
    loss.backward(); clip_grad_norm(model.parameters(), [comm], 1.0); optimizer.step()       # see parallel.norms

    regions       f and g, and their four relatives of sequence parallelism: where a rank's activations meet the others'
    cuts          which part of a parameter a rank has, whether it counts it in a norm, and whole tensors again
    row           the linear layer whose inputs are cut, so that its outputs are sums to be completed
    vocabulary    an embedding and a cross entropy whose rows are cut among the ranks
    plans         which modules of a GPT-2 or a Llama become what
    masks         dropout inside of what is cut, where each rank needs a mask of its own
    apply         `tensor_parallel` itself
"""

from .apply import tensor_parallel
from .cuts import counts_here, load_whole_state_dict, whole_state_dict
from .plans import Columns, TensorPlan

__all__ = ["Columns", "TensorPlan", "counts_here", "load_whole_state_dict", "tensor_parallel",
           "whole_state_dict"]
