"""The supervisor that runs inside a sandbox as its first process.

Standard library only, Python 3.9 or later, relative imports only: `milepost.sandboxes.bundle` packs these modules into
one string that the container runs with `python3 -c`, so nothing has to be mounted or installed there.
"""
