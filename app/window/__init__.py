"""What every feature uses of the window. May import `app.link`, never a feature.

    commands, keymap                   what the user can do, and its keys
    program_settings, settings_store   preferences, and what is remembered between runs
    setting_specs                      how each engine setting is shown
    docks, dock_layouts                panels around the page, and their positions
    layouts                            saved arrangements
    notices, notifications, progress  messages and jobs
    nav_rail, help_dialogs, single_instance, crash_report
"""
