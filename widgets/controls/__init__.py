"""Controls that every page uses.

lines, text, combo, buttons, number_control, paths      single controls, and the texts they share
setting_row, tables, swatches, layouts, frames          rows, tables and boxes
popover, notice, kept_focus                             over the page, and where the keyboard is
"""
