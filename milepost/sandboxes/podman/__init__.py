"""The Podman back end of the sandbox port, over Podman's REST API on a Unix socket; see `provider`."""
