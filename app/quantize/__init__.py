"""The Quantize page: making quantized models, measuring what they cost, and keeping the reports."""
