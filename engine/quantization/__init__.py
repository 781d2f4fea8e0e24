"""Weights in few bits: what they are, how checkpoints store them, how they are made.

    codes.py      a quantized matrix as numbers: what every format is read into and written from
    rounding.py   the nearest codes of a matrix (int8, int4, nf4, fp8), without calibration
    formats/      checkpoints of AWQ, GPTQ, compressed-tensors, FP8 and bitsandbytes

How the codes lie in memory while they are multiplied is `engine.kernels.weights`.
"""
