"""Colours, fonts, icons and the stylesheet.

    colors, fonts, tables (themes), stylesheet, restyling, theme (applies one), icons
"""
