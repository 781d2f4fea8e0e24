"""Inferdeck as an installed program: its entry in the desktop's menu, and a self-contained build.

    entry     desktop entry and icon of this user (`inferdeck install-desktop`)
    bundle    a folder that runs without Python (`python -m app.desktop.bundle`)
    frozen    the entry point of that folder's executable
"""
