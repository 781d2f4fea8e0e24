"""CPU kernels in C for x86, compiled once for the processor that runs them.

    build.py          compiles every .c file here with the machine's own compiler
    compiling.py      runs the compilers, and ends them with what they started
    library_cache.py  the compiled files, checked before they are loaded
    library.py        the compiled functions
    workspace.py      the memory that they compute in, and their thread count
    integer.py        4- and 8-bit weights, multiplied as integers (integer.c)
    compressed.py     bfloat16 in 12 bits, bit for bit (compressed.c; tiled.c multiplies it)
    dequantized.py    float8, NF4, and 4 and 8 bits in groups for float32 models (dequantized.c)
    elementwise.py    norms, rotary embedding, gated activation (elementwise.c)
    attention.py      attention over KV pages, and writing to them (attention.c, prompt.c)
    replay.py         calls made again without Python between them (replay.c)
    check.py          checks all of them once; `library()` for everyone else

plain.c multiplies plain 16-bit weights, tiled.c for many rows; barrier.c synchronizes threads
within microseconds. Without a C compiler, on other processors and other systems torch computes the
same.
"""
