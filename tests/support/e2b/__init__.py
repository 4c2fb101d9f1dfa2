"""A double of E2B's control plane and of envd, its agent in each sandbox, that E2B's own SDK talks to over loopback.

Written from the public interface descriptions (openapi.yml, envd's process and filesystem services), not from the SDK,
which is what it is to judge.
"""

from tests.support.e2b.double import KEY, Double, Faults, e2b_double, require_e2b_double

__all__ = ["KEY", "Double", "Faults", "e2b_double", "require_e2b_double"]
