"""Window parts that features share. May import `app.link`, never a feature.

    commands, keymap                   actions of the user, and their shortcuts
    program_settings, settings_store   preferences, and state kept between runs
    setting_specs                      how each engine setting is shown
    docks, dock_layouts, dock_fold     panels around the page, their positions, and too little room
    layouts                            saved arrangements
    notices, notifications, progress   messages and jobs
    nav_rail, help_dialogs, single_instance, crash_report
"""
