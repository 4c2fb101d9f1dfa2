"""Whether the configuration a command found is the one that the running instance works with."""

from __future__ import annotations

from cli.invocation import Invocation
from milepost.bootstrap.data_root import InstanceInfo
from milepost.domain.errors import ConfigInvalid


def require_agreement(call: Invocation, info: InstanceInfo) -> None:
    """Warn about a configuration file of one's own that the instance does not work with.

    Raises:
        ConfigInvalid: it was named by --config, so that going on would do something else than was asked for.
    """
    own = call.config
    if own.path is None or info.config_digest in (None, own.digest):
        return
    theirs = info.config_path or "the built-in defaults"
    same_file = str(own.path) == theirs
    if same_file and (info.config_digest or "").partition(".")[0] == own.digest.partition(".")[0]:
        # Agents count as they are in the file now.
        return
    if same_file:
        message = f"{own.path} has changed since the running instance (pid {info.pid}) read it"
    else:
        message = f"{own.path} differs from {theirs}, which the running instance (pid {info.pid}) works with"
    fix = "wait until that run has ended" if info.role == "run" else f"restart milepost {info.role}"
    if call.config_file is not None:
        raise ConfigInvalid(f"{message}.", field="config", fix=f"Leave --config out, or {fix}.")
    call.out.note(f"Warning: {message}; to use it, {fix}.", style="yellow")
