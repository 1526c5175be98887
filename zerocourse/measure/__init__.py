"""What a rank really holds: bytes alive, now and at peak, read from the storages under the tensors."""
