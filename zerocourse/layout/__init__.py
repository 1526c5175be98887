"""Who owns what: rank maps, the layout of a flat buffer, the mesh. Nothing here communicates."""
