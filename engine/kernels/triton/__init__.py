"""Kernels in Triton, for NVIDIA GPUs; imported only where one is used, or by their tests."""

import os

# what versions before 3.10 do unless told, and what the speed of every kernel rests on
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
