"""What a learner has: a folder of their own, and in it a record of what they predicted and what passed.

`folder` finds the folder, `record` is what the course remembers there, and `remembered` what comes of it. Nothing of it leaves the
machine.
"""
