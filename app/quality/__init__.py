"""Evaluation reports in the program: what they say, side by side, kept and exported. No Qt."""
