"""Clients of other servers: identify them, chat, read metrics, attach. No Qt.

address   a base URL in its many spellings
errors    what can go wrong on the way there: cause and remedy
fetch     one small request, bounded in time and size
probe     who answers at an address
tables/   the names of metrics, one small table a dialect
metrics   what a dialect's metrics say, under our names; histogram: the arithmetic
sampling  SamplingParams as the fields that a dialect takes
sse, chunks, stream   a reply as it is written
engine    ForeignEngine: all of it behind the commands and events of an engine of ours
"""
