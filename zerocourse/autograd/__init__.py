"""What autograd and torch.compile are asked: which backward runs, which gradients it will bring, what a forward has returned."""
