"""Sessions as files: lossless JSON, Markdown, and one HTML page."""
