"""EAGLE-3: a one-layer head that reads the target model's hidden states and drafts tokens.

    shape.py      a head's settings in each published config style; whether it fits a model
    head.py       its computation, and hooks for the target model's hidden states
    weights.py    its tensors, by their published names
    proposer.py   its KV cache beside the target model's, and the drafts

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test" (arXiv:2503.01840).
"""
