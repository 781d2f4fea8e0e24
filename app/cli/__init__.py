"""The command line. Imports no Qt, and no torch before a command needs it.

Reads in this order: `main` (parser, errors, exit codes), `options` (from the engine's registries),
`session` (an engine with its progress), then one module per command. `child` is the window's engine
process.
"""
