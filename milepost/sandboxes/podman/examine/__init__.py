"""Looks at every requirement of a sandbox on this host, one by one, and says what to run for those that are missing."""
