"""What only the chapter on memory math uses; its exercises are in `checks`."""
