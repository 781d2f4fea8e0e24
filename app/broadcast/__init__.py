"""One prompt, or many, to many conversations at once: batching to be seen at work."""
