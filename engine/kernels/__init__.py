"""Hot operations, each under one name with several implementations, and the choice among them."""
