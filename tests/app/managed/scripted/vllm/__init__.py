"""A scripted vLLM: the log, flags and pages of the real one, without a model."""

__version__ = "0.32.0"
