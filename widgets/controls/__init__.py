"""Controls shared by all pages.

lines, text, combo, buttons, number_control, paths      single controls, and shared texts
setting_row, tables, swatches, layouts, frames          rows, tables and boxes
popover, notice, kept_focus                             overlays, and keyboard focus
"""
