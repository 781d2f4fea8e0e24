"""How good a quantized model is: error per layer, reports side by side, tokens in their text."""
