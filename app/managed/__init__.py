"""Managed engines: servers of others (vLLM, SGLang, any command) that the window runs. No Qt.

launch                    what to run, where, and with which settings
interpreters, arguments   Pythons that have an engine; its flags, read from its own parser
supervisor, command       the command line, and the process that ends with the window
log_progress, failures    what its log says: progress, and why it ended
handle                    the process itself: one that ends with the window, and one that stays
process                   ManagedProcess: start, progress, health, crash, stop
room                      whether memory suffices for a second engine beside the first
replicas                  whether servers can be those of one router
drain                     requests end before a restart
"""
