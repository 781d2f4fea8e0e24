"""The machine: devices, memory, dtypes and peak rates. Knows nothing of models.

devices.py       the CPU and NVIDIA GPUs, and why a GPU cannot be used
device_map.py    which device computes which layers
machine.py       cores, memory, default dtype
nvml.py          GPU figures from NVIDIA's driver
malloc.py        memory that the process keeps between steps
mapped.py        tensors with a mapping of their own: weights and KV cache, in huge pages
garbage.py       which thread collects Python's cyclic garbage
peaks.py         measured memory bandwidth and FLOP/s
idle_cores.py    cores that other programs leave
step_threads.py  the thread count of each step on the CPU
"""
