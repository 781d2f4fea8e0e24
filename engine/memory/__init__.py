"""Memory planning: what a model needs before it is loaded, and what a step allocates.

model_sizes      sizes of weights and KV cache
plan             weights | activations | KV cache, within what is free; layers on the CPU
profiling        activations, measured on a GPU
"""
