"""The table of all requests.

    model (rows), panel (table and commands)
"""
