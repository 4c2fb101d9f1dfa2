#!/bin/sh
# From a fresh Debian or Ubuntu machine to a finished turn: installs Milepost into .venv, prepares the sandbox where it
# may, and has the scripted agent correct a sample project. Running it again is quick.
set -eu
. "$(dirname -- "$0")/environment.sh"

HOST_PACKAGES='git podman crun conmon netavark catatonit uidmap slirp4netns'

prepare_sandbox() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        say "This is no Debian or Ubuntu, so the sandbox image cannot be made here; see docs/sandbox.md."
        return 0
    fi
    image_packages=$("$VENV/bin/python" -m milepost.sandboxes.image --packages)
    # shellcheck disable=SC2086
    missing=$(missing_packages $HOST_PACKAGES $image_packages)
    if [ -n "$missing" ]; then
        if [ "$MAY_INSTALL" = no ]; then
            say "Not installed: $missing"
            say "Without them agents have no tools. To install them: sudo apt-get install -y --no-install-recommends $missing"
            command -v podman >/dev/null 2>&1 || return 0
        else
            say "Installing from the distribution: $missing"
            # shellcheck disable=SC2086
            apt_install $missing >/dev/null || say "Some packages could not be installed; going on without them."
        fi
    fi
    "$VENV/bin/milepost" sandbox build-image || say "Going on without a sandbox: agents have no tools."
}

step "1/3 Milepost in its own environment"
prepare_environment
say "$(megabytes "$VENV") MB in $VENV, after $(seconds)."

step "2/3 Sandbox for tools"
prepare_sandbox
say "After $(seconds)."

step "3/3 One turn of the scripted agent on a sample project"
SAMPLE=$(mktemp -d "${TMPDIR:-/tmp}/milepost-sample-XXXXXX")
"$VENV/bin/python" - "$SAMPLE" <<'PY'
import sys
from pathlib import Path
from milepost.providers.scripted.demo import demo_project_files
for name, data in demo_project_files().items():
    (Path(sys.argv[1]) / name).write_bytes(data)
PY
say "The project is in $SAMPLE."
"$VENV/bin/milepost" run "The greeting is misspelled. Correct it and run the test." --workspace "$SAMPLE" --provider scripted --model demo

image=$(podman image inspect --format '{{.Size}}' localhost/milepost-sandbox:latest 2>/dev/null || echo 0)
step "Done in $(seconds): $(megabytes "$VENV") MB in .venv, $((image / 1000000)) MB sandbox image"
say "The turn is in the ledger. Its Temporal page is served while a stack runs:"
say "  $VENV/bin/milepost dev        keeps everything running and prints the addresses"
say "  $VENV/bin/milepost --help     shows the rest; see README.md for a real model"
say "  $ROOT/infra/test.sh           runs the tests"
