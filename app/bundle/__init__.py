"""The self-contained build: a folder that runs without Python.

    __main__         makes it: `python -m app.bundle --output DIR`
    inferdeck.spec   what PyInstaller puts into it
    frozen           the entry point of its executable
"""
