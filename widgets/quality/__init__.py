"""Quality of quantized models: error per layer, values side by side.

    layer_chart, value_bars
"""
