"""Tensor parallelism: several ranks compute each layer together.

    shape.py     what a rank has of a model: its config, and how each weight is cut
    cutting.py   cuts tensors, and matrices of codes
    share.py     the part of one rank, and how it is filled from the whole checkpoint
    exchange.py  sums of what ranks hand each other in a step
    meeting.py   how they wait for each other
    joining.py   puts the exchanges into a rank's model
    team.py      a thread for each rank, and the cores or the GPU that it has
    ranks.py     the loaded models of all ranks
    runner.py    a step of all ranks, and their caches as one
    trial.py     whether a class computes the same in parts
"""
