"""What a model needs before it is loaded, and what a step allocates."""
