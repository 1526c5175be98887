"""What only the chapter on ZeRO-1 uses; its exercises are in `checks`."""
