"""The Tune page: settings, load, charts, comparison.

    settings_model, settings_commands, engine_settings (view)   choose, apply, undo
    setting_list, hints, row_remarks                            rows and the text below them
    forecast, forecast_process, forecaster                      the load of the last minute replayed
    prediction, pending                                         what Apply will cost and gain
    precision_rows, draft_models, profile_menu                  what some rows offer
    server_commands, servers, server_dialog                     command lines of other servers
    changes, changes_popover                                    go back to a state of the settings
    verdict, result_bar                                         the last change, in words
    load_plan, load, load_bar
    comparison, comparison_table, comparison_view               two time ranges
    page
"""
