"""Adapters of the model gateway port. Importing this package loads no provider library."""
