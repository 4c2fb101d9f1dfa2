"""Long-term memory: records by namespace and key, across Sessions."""
