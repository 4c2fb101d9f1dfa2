"""Embedders: adapters that make vectors of texts."""
