"""Cassettes: recorded answers of another provider, replayed without network."""
