"""What a teacher and the students read of a class: one page a class, and one page a student. Nothing on them needs a network."""
