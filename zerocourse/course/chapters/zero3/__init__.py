"""What only the chapter on ZeRO-3 uses; its exercises are in `checks`."""
