"""Kernels in Triton, for NVIDIA GPUs; imported only where one is used, or by their tests."""
