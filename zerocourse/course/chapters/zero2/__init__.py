"""What only the chapter on ZeRO-2 uses; its exercises are in `checks`."""
