"""The KV block map.

    scales (what a cell stands for), picture (pixels), block_map (widget)
    texts (cells as text), panel (legend, pointed cell)
"""
