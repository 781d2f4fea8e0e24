"""After a crash: what is kept for it, the report, and the offer to go on."""
