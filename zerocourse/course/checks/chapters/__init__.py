"""The checks of the exercises, `chapterNN`, and what they look at answers with."""
