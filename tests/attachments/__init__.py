"""Files that turns refer to."""
