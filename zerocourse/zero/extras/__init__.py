"""What only unusual models need: one mechanism a file, each with the model that needs it. The stages call them by name."""
