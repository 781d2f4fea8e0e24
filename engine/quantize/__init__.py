"""Makes quantized checkpoints: AWQ, GPTQ and round to nearest, one layer at a time.

recipe, targets            the requested settings, and the matrices to quantize
calibration, statistics    the calibration text, and statistics of each layer's inputs
decoder, folding, groups   the model layer by layer; where scales can be folded in
grid, awq, gptq            the search for scales and codes
layer_by_layer, work, output_folder, quantize    the run, its parts and its files
"""
