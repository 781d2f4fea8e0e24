"""The Server page: serve this engine, and run or use other engines.

    controller, form, page, view, calls_table, addresses   the server of this window
    connections, connection_form, connections_panel        the stored remote engines
    managed, launch_panel, launch_form, flag_rows          engines that it runs
    managed_card                                           and their cards and logs
    switch, engine_cards, cards                            using one, watching all
    parts                                                  shared widgets
"""
