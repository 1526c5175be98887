"""States and parameters on a disk: files of whole blocks, what is read and written when, and a buffer that lies there."""
