"""Grades notebooks: the verdict is made in a process in which no cell of a learner's has run.

`notebook` finds the answers, `student` is the process that runs their cells and sends the answers back as opaque bytes,
`examiner` has them checked on ranks that no other answer has used, and `classroom` does this for a folder.
"""
