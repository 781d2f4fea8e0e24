"""Controls shared by all pages.

lines, text, combo, buttons, number_control, paths      single controls, and shared texts
setting_row, tables, figure_table, swatches             rows and tables
layouts, frames, windows                                boxes
popover, notice, kept_focus                             overlays, and keyboard focus
"""
