"""Controls shared by all pages.

lines, text, combo, buttons, progress_bar               single controls, and shared texts
number_control, paths                                   numbers and paths
setting_row, tables, figure_table, swatches             rows and tables
layouts, frames, windows                                boxes
popover, notice, kept_focus                             overlays, and keyboard focus
"""
