"""Runs the model once over a batch: eagerly, or as CUDA graphs."""
