"""Speculative decoding: speed-up and acceptance.

    positions (bar chart), panel
"""
