"""The settings dialog: preferences, engine settings, keyboard shortcuts.

    catalog        sections and entries, without widgets
    sources        values of the program's and of the engine's entries
    section_view   rows of a section; list of sections
    keyboard_page  commands and their keys
    dialog         all of these; controller opens it
"""
