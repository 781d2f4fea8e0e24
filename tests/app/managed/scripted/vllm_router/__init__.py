"""A scripted vllm-router: its command line, log and pages, as recorded from version 0.1.17."""
