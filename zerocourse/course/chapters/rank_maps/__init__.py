"""What only the chapter on rank maps uses; its exercises are in `checks`."""
