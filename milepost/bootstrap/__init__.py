"""Composition: configuration -> adapters -> services. The one place where adapters meet."""
