"""The window's own engine, served to other programs.

choice      what was chosen: where, to whom, how much; checked while it is written
desk        starts and stops the server, off the window's thread
addresses   what this machine is called by others; free ports
examples    how other programs call it, ready to be copied
form, status, calls_table, view    what the page shows
"""
