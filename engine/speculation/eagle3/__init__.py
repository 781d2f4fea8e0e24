"""EAGLE-3: a head of one layer reads the model's hidden states and drafts the tokens after next.

    shape.py      what a head's folder says of it, in every published style; whether it fits a model
    head.py       its mathematics, and how it gets the hidden states of the model's pass
    weights.py    its tensors, by their published names
    proposer.py   its KV cache beside the model's, and the drafts

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test" (arXiv:2503.01840).
"""
