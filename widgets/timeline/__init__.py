"""The step timeline: one row per request, one column per engine step."""
