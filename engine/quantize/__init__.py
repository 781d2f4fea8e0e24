"""Makes quantized checkpoints: AWQ, GPTQ and plain rounding, one layer at a time.

recipe, targets            what the user asks for, and the matrices that it is for
calibration, statistics    the text, and what layers see of it
decoder, folding, groups   the model layer by layer; where scales can be folded in
grid, awq, gptq            the search for scales and codes
layer_by_layer, work, output_folder, quantize    the run, its parts and its files
"""
