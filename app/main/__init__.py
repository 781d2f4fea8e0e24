"""The composition root: makes the parts of the program and puts the window together."""
