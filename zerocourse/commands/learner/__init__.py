"""The commands for learners and their teachers: what there is, copies to work in, and how the answers are."""
