"""How many bytes a rank holds, sends and peaks at, by formula. Nothing here imports torch."""
