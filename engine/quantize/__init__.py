"""Making quantized checkpoints: AWQ, GPTQ and plain rounding, layer by layer."""
