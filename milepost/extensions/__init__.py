"""Tools of the user's own: peers that are called over HTTP, and Python packages found by their entry points."""
