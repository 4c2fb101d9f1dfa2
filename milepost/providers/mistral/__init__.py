"""Mistral's dialect of chat completions."""
