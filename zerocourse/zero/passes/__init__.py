"""What a stage does while autograd runs: the list that a backward writes, how far it is, and what the ranks tell each other.

    schedule     the order of the units in a forward, from which the lists follow
    program      the list, with one condition for each action; it knows nothing of torch
    backward     one backward while it runs: autograd's facts move the conditions
    reducing     the reductions that are under way, and how they end
    agreement    the two small messages between the ranks
"""
