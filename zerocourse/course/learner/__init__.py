"""What a learner has: a folder of their own, and in it a record of what they predicted and what passed.

`folder` finds the folder, and `record` is what the course remembers there. Nothing of it leaves the machine.
"""
