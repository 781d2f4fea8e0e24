"""Runs the model once over a batch: launched kernel by kernel, or replayed.

    model_runner.py       ModelRunner: a model and its KV cache
    recording.py          small steps on the CPU, recorded and replayed
    recorder.py           what a step computes, as a list of calls
    cuda_graphs.py        decode steps, captured once for some batch sizes and replayed
    cuda_capture.py       capturing on an NVIDIA GPU
    verify_as_decode.py   verifying drafts as decode rows, so that graphs apply
"""
