"""The tokens of one reply: how probable each was, and what else could have stood there."""
