"""Memory as files of the data root."""
