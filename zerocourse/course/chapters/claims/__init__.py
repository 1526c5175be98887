"""What only the chapter on the claims on trial uses; its exercises are in `checks`."""
