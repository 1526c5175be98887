"""What only the chapter on slow links uses; its exercises are in `checks`."""
