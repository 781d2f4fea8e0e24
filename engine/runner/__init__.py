"""Runs the model once over a batch: launched kernel by kernel, or replayed as CUDA graphs.

    model_runner.py       ModelRunner: one rank's model and KV cache
    cuda_graphs.py        decode steps, captured once for some batch sizes and replayed
    cuda_capture.py       capturing on an NVIDIA GPU
    verify_as_decode.py   verifying drafts as decode rows, so that graphs apply
"""
