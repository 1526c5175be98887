"""Memory that comes and goes: storages that give theirs back while views of them live on, and blocks that are used again."""
