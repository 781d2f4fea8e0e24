"""The Tune page: a background load, the charts that the knobs move, two ranges as numbers."""
