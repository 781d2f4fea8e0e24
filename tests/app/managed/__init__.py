"""Managed engines, against a scripted vLLM and its recorded logs."""
