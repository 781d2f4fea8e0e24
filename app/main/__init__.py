"""The main window and its composition root: no other room makes these parts.

    application    creates every part; page_list: the pages of the rail
    wiring         connects their signals
    commands       commands of the main window
    main_window    arranges pages and panels; dialogs of the main window
    startup        the first model; start: the process
    engine_status  engine, its process and finished jobs, shown in the window
"""
