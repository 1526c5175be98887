"""What an engine does in an optimizer step: which optimizer, which learning rate, and half precision."""
