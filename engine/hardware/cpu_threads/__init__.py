"""The thread count of each step on the CPU.

    idle_cores.py     cores that other programs use; NUMA nodes
    search.py         tries fewer and more threads while steps of one kind run, and keeps the best
    step_threads.py   the count for the next step, from both

Threads that share out a product wait for the last of them. Where another program has its core for a
slice of the scheduler's (some ms to 100), all of them stand still, and they wait by turning round,
on cores that others want. Qwen3-0.6B in bfloat16 on two cores, ms a token (mean) and to the first
of a prompt of 200, with two threads and with one:

    beside no other program         29    350        47    548
    one program that never rests   109    918        52    567
    two of them                    186  5,440        73    782

And a step of a small model is over before its threads have gained what waking them costs: 2.95 ms
a token of the starter model with two threads, 2.90 with one.

The numbers that come out do not depend on it: in the kernels of this engine threads divide outputs
among them, and a sum that is divided has the same parts whatever their number. PyTorch's products
were seen to give the same bits.
"""
