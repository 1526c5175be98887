"""A checkpoint as files: a folder that is whole or not there, its index and its checksums."""
