"""From a folder on disk to a model in memory: checkpoint, architecture, layers, weights."""
