"""The KV block map.

    picture (pixels), block_map (widget), panel (legend, pointed block)
"""
