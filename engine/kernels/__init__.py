"""Kernels: every hot operation, its implementations, and the choice among them.

    registry.py      chooses by device, format and row count; measure.py times the candidates
    linear.py        linear layers and plain weights; dense.py: their products
    weights.py       the interface of weights in other forms
    quantized.py     from codes to the fastest form for a device
    tiled.py         any codes by torch, tile by tile: the fallback on every device
    packed.py, packed_codes.py, per_channel.py, experts.py   on a GPU
    embedding.py     int8 embeddings and output heads
    ops.py           norms, rotary embedding, gated activation
    paged_kv.py      the tensors of KV pages
    cpu/, triton/    the kernels in C and in Triton
"""
