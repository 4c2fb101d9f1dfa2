"""Shapes of requests and responses. Names are public contract: fields are only added."""
