"""The Quantize page: quantized models made, measured and reported."""
