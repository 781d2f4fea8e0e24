"""One model in two precisions, side by side: the same prompts, answered greedily by both."""
