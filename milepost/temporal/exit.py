"""Leaving a process that used the Temporal SDK.

Such a process can abort during interpreter finalization although all work succeeded (a fault of the SDK's native part).
CLI, worker and test runs therefore end here: everything is flushed, then the process leaves without finalization.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn


def clean_exit(code: int) -> NoReturn:
    """Flush logs and standard streams and end the process with `code`."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # A closed pipe must not turn a finished command into a failure.
            continue
    os._exit(code)
