"""A CUDA device that is not there, or several: its memory is the host's, its work is done by the
CPU, and it is as late, as strict and as forgetful as a GPU may be.

    devices   which of several is a thread's current one
    tensors   what is on a device: refuses to be mixed with another's, counts its bytes
    copies    what is on its way: wrong until somebody waits for it
    streams   order: streams, events, waiting
    graphs    CUDA graphs: recorded without being computed, replayed on the same memory
    install   puts it where torch and Triton look for a device

`SIMULATE_GPU=1 pytest tests/gpu` runs what needs a GPU here, in Triton's interpreter. It finds what
the CPU forgives: a number read before it arrived, a buffer filled again before it was copied, a
wait in the middle of a step, a graph that reads memory given back. Speed it says nothing about, nor
of what torch's own CUDA kernels compute.
"""
