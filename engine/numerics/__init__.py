"""Number formats: quantized matrices, rounding, the KV cache's dtype. Below the kernels.

    codes.py      a quantized matrix: integers, float8 or table codes, with scales
    rounding.py   round to nearest, without calibration
    scheme.py     which weights of a model are quantized, and how
    experts.py    matrices of a mixture's experts in quantized checkpoints
    kv_dtype.py   what the KV cache stores keys and values in
"""
