"""Sessions from files: lossless exports, and transcripts of other tools."""
