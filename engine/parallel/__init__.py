"""Tensor and pipeline parallelism: several ranks compute each layer, or each a part of the layers.

    shape.py        a rank's config, and how each weight is sharded
    share.py        shards of tensors and quantized matrices
    exchange.py     all-reduce of the ranks of a step, and their barriers
    team.py         a thread for each rank, with its cores or GPU
    ranks.py        the loaded models of all ranks, with the all-reduces inserted
    runner.py       a step of all ranks, and their caches as one
    pipeline.py     layers on several GPUs
    smoke_test.py   whether a class computes the same in shards
"""
