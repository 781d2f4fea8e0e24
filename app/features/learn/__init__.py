"""Three short lessons on the user's own machine: a load runs, one setting moves, a sentence says
what changed.

    lessons      what each lesson asks and explains
    course       the state machine: baseline, move, measure, evaluate, result. No Qt
    quality      the evaluation of the lesson on precision, in a sentence. No Qt
    callout      the box beside the setting that a lesson points at
    cards        the offer; the callout on the Tune page, a row above other pages
    controller   runs a lesson on the window's load and settings; commands
"""
