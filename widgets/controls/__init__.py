"""Controls that every page uses: lines, boxes, rows, tables, popovers."""
