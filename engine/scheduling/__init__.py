"""Which request computes how many tokens in which KV blocks. Pure Python: no torch."""
