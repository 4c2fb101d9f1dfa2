"""The command line: a client of a running instance, or of one it starts for the time of a turn."""
