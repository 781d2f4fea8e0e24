"""Products for x86 processors, compiled where they run.

    product.c     the product with packed weights of 4 and 8 bits
    decoded.c     the product with float8, with places in a table (NF4), and in float32 models with
                  4 and 8 bits in groups
    plain.c       the product with plain weights of 16 bits
    between.c     norms, rotary embedding and the activation between products
    attention.c   attention over the pages of a KV cache
    part.h        a few rows of it over a part of a sequence
    cache.c       keys and values written to those pages
    meet.c        threads that wait for each other for microseconds
    rows.h        activations as integers
    pages.h       the pages, in any form
    exponential.h e^x
    numbers.h     activations and results in any number format
    vectors.h     one name for each operation of AVX-512 VNNI, AVX-VNNI and AVX2
    build.py      compiles them with the machine's own compiler, once
    library.py    the compiled functions, and why there are none
    weights.py    the packed weights that product.c reads
    decoded.py    those that decoded.c reads
    plain.py      the product with plain.c's, as one of `engine.kernels.linear`
    between.py    what between.c computes, as `engine.kernels.ops` has it
    attention.py  a layer's pages, as `engine.attention` has them, with attention.c and cache.c
    check.py      all tried once, before they are used

Without a C compiler, on other processors and other systems torch's operations compute the same.
"""
