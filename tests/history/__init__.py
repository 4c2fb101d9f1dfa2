"""History, search, export and import."""
