"""What the checks of several chapters look at an answer with."""
