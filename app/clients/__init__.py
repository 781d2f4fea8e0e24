"""Clients of other servers: identify them, chat, read metrics, attach. No Qt.

target, http, errors               address and type of a server; small requests; errors
probe, connection                  identify the server at an address; saved connections
calls, chunks                      SamplingParams as each API's fields; chunks of replies
socket_clock, stream               arrival times at the socket; replies over server-sent events
metric_names, metrics_page, metrics, look, watch     metrics of each server under our names
router                             a router's replicas, and their figures as one server's
loop_thread                        a thread with an event loop: the base of both engines
replies, engine                    ForeignEngine: another server with EngineThread's interface
attached_line, attached_session, attached     RemoteEngine: an attached Inferdeck engine
"""
