"""The main window and its composition root: no other room makes these parts.

    application    which parts there are, and which part gets which
    wiring         their signals; pages, commands, dialogs: what the window offers
    main_window    arranges pages and panels
    startup        the first model; start: the process
    engine_status  engine, its process and finished jobs, shown in the window
"""
