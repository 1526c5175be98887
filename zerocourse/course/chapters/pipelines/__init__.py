"""What only the chapter on pipelines uses; its exercises are in `checks`."""
