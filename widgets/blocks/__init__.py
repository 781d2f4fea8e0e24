"""The map of the KV cache: one cell per physical block."""
