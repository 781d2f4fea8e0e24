"""The Server page: this window's engine served, and engines elsewhere."""
