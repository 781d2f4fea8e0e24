"""What the window can do, a folder each."""
