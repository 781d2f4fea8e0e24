"""Which keys run which command: the map, its file, and the page on which it is changed."""
