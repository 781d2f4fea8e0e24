"""Memory planning: what a model needs before it is loaded, and what a step allocates.

model_sizes      sizes of weights and KV cache
plan             weights | activations | KV cache, within what is free
offload_plan     how many layers go to the CPU
profiling        activations, measured on a GPU
"""
