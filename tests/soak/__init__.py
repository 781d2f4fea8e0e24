"""A server under load for long: streams, aborts, windows that come and go, and changes of settings.

    python -m tests.soak [--minutes 60] [--streams 64] [--json FILE]

Every request that the server accepts must end with a finish reason; requests that run at a change
to another model with an error that names it. Equal seeded requests have equal replies. After the
warm-up memory stays within 32 MiB, and file descriptors and threads come back.
"""
