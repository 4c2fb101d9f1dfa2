"""Test support; see the fixtures below."""
