"""The command palette.

    items (search and list), palette (popup)
"""
