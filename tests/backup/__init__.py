"""Backup, restore and collection of what nothing uses."""
