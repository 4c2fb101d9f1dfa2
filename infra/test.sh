#!/bin/sh
# Runs the tests in the checkout's environment, which is made or updated first. Arguments go to pytest:
#   infra/test.sh                 the default suite (everything but what is marked slow)
#   infra/test.sh -m slow         the slow tests
#   infra/test.sh tests/config    a part
set -eu
. "$(dirname -- "$0")/environment.sh"

prepare_environment dev
cd "$ROOT"
# Tests start hundreds of processes: each would compile every module again.
unset PYTHONDONTWRITEBYTECODE
exec "$VENV/bin/python" -m pytest -n 2 --dist loadfile -m "not slow" "$@"
