"""Where the latency of one reply went: its queue, its prefill, and every gap between tokens."""
