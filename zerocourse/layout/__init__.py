"""Who owns what: rank maps, the layout of a flat buffer, and how even they are. Nothing here communicates."""
