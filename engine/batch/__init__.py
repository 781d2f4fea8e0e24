"""A step as tensors: packed without padding, and copied to the device without blocking.

    batch.py      Batch: the tokens of all requests of a step; packing and padding
    transfer.py   pinned-memory uploads, downloads and timing
"""
