"""The loaded model with its KV cache: made, described, exchanged."""
