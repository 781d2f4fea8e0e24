"""The leading figures and the live charts of the engine."""
