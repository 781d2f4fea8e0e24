"""Number formats: quantized matrices, rounding, the KV cache's precision."""
