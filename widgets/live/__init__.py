"""Live figures of the engine.

    figures (values and texts), strip (top of the window), charts (grid of time charts)
"""
