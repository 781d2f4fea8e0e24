"""The Server page: serve this engine, and use remote engines.

    controller, form, page, view, calls_table, addresses   the server of this window
    connections, connection_form, connections_panel        the stored remote engines
    switch, engine_cards, cards                            using one, watching all
    managed, managed_form, flag_table, managed_card        engines that this window runs
    parts                                                  shared widgets
"""
