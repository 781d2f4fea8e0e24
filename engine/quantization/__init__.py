"""Weights in few bits: what they are, how checkpoints store them, how they are made.

    codes.py      a quantized matrix as numbers: what every format is read into and written from
    rounding.py   the nearest codes of a matrix (int8, int4, nf4, fp8), without calibration
    formats/      checkpoints of AWQ, GPTQ, compressed-tensors, FP8 and bitsandbytes

Making a quantized checkpoint of a 16-bit one:

    quantize.py       disk to disk, layer by layer            recipe.py        method and settings
    calibration.py    the text, as sequences of tokens        targets.py       what is quantized
    decoder.py        one layer in memory, called rightly     work.py          one layer being done
    watch.py          which products a layer computes         groups.py        those of one input
    folding.py        scales that change nothing              statistics.py    of inputs
    awq.py            scales, and clipping.py the ranges      grid.py          rounding to integers
    gptq.py           one matrix, gptq_layer.py a layer       results.py       what came of it
    output_folder.py  whole or not at all                     shards.py        safetensors, streamed

How the codes lie in memory while they are multiplied is `engine.kernels.weights`.
"""
