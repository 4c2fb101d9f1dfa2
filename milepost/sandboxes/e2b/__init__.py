"""E2B as a back end: one micro virtual machine of its service per Session, reached through its SDK."""
