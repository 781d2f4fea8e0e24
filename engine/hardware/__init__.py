"""The machine: devices, memory, NVIDIA's driver, peaks, CPU threads."""
