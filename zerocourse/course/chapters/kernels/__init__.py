"""What only the chapter on kernels uses; its exercises are in `checks`."""
