"""The command line. Imports no Qt, and no torch before a command needs it."""
