"""Runs the model once over a batch: eagerly, as CUDA graphs, or with CPU offload."""
