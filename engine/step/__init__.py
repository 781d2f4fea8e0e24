"""One engine step: launched, read, and turned into output."""
