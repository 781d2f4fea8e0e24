"""Quality of quantized models: error per layer, values side by side."""
