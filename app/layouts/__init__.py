"""Named layouts: which page is shown, where the panels are on every page, how large the text is."""
