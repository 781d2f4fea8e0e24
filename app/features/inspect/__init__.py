"""Where a step's time and the memory go, and the program's log."""
