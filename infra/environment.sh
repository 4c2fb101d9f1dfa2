# Sourced by quickstart.sh and test.sh: finds Python, makes .venv in the checkout, installs Milepost into it.
# Exact versions come from requirements.lock. uv is used when it is there, else pip. Nothing prompts.

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
VENV=$ROOT/.venv
STARTED=$(date +%s)

say() { printf '%s\n' "$*"; }
step() { printf '\n==> %s\n' "$*"; }
fail() {
    printf '\nError: %s\n' "$*" >&2
    exit 1
}

# Root rights without a question: SUDO is "" for root, "sudo -n" where that works; MAY_INSTALL tells whether either holds.
SUDO=''
MAY_INSTALL=no
if [ "$(id -u)" = 0 ]; then
    MAY_INSTALL=yes
elif command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
    SUDO='sudo -n'
    MAY_INSTALL=yes
fi
command -v apt-get >/dev/null 2>&1 || MAY_INSTALL=no

apt_install() {
    # shellcheck disable=SC2086
    if ! $SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" </dev/null; then
        # The package lists may be missing or old.
        $SUDO apt-get update -q </dev/null || return 1
        $SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" </dev/null
    fi
}

missing_packages() {
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || printf '%s ' "$package"
    done
}

good_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${MILEPOST_PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if command -v "$candidate" >/dev/null 2>&1 && good_python "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

make_venv() {
    PYTHON=$(find_python || true)
    if [ -z "$PYTHON" ] && [ "$MAY_INSTALL" = yes ]; then
        say "Installing Python from the distribution ..."
        apt_install python3 python3-venv >/dev/null || true
        PYTHON=$(find_python || true)
    fi
    [ -n "$PYTHON" ] || fail "Python 3.11 or later is needed. On Debian 12+, Ubuntu 24.04+: sudo apt-get install python3 python3-venv"
    say "Making $VENV with $("$PYTHON" --version) ..."
    if command -v uv >/dev/null 2>&1; then
        uv venv --quiet --python "$PYTHON" "$VENV"
        return 0
    fi
    if ! "$PYTHON" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        [ "$MAY_INSTALL" = yes ] || fail "This Python cannot make environments. Install: sudo apt-get install python$version-venv"
        say "Installing python$version-venv from the distribution ..."
        apt_install "python$version-venv" >/dev/null || fail "python$version-venv could not be installed."
    fi
    "$PYTHON" -m venv "$VENV"
}

install_into_venv() {
    if command -v uv >/dev/null 2>&1; then
        uv pip install --quiet --python "$VENV/bin/python" --constraint "$ROOT/requirements.lock" "$@"
    else
        # Two times quiet: without the warnings of the machine's own pip configuration. Without compilation: what is
        # imported is compiled then, the rest would only take time and space.
        "$VENV/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-input --no-compile \
            --constraint "$ROOT/requirements.lock" "$@"
    fi
}

# prepare_environment [dev]: makes or updates .venv; does nothing when it is up to date.
prepare_environment() {
    if [ -e "$VENV" ] && ! good_python "$VENV/bin/python"; then
        fail "$VENV has no usable Python 3.11 or later. Remove it and start again."
    fi
    [ -x "$VENV/bin/python" ] || make_venv
    wanted=$(cat "$ROOT/pyproject.toml" "$ROOT/requirements.lock" | cksum)
    if [ "$(cat "$VENV/.milepost-core" 2>/dev/null)" != "$wanted" ]; then
        say "Installing Milepost and its libraries ..."
        install_into_venv --editable "$ROOT"
        printf '%s' "$wanted" >"$VENV/.milepost-core"
    fi
    if [ "${1:-}" = dev ] && [ "$(cat "$VENV/.milepost-dev" 2>/dev/null)" != "$wanted" ]; then
        say "Installing the development tools ..."
        "$VENV/bin/python" - "$ROOT/pyproject.toml" >"$VENV/.milepost-dev.txt" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    print(*tomllib.load(file)["dependency-groups"]["dev"], sep="\n")
PY
        install_into_venv --requirement "$VENV/.milepost-dev.txt"
        printf '%s' "$wanted" >"$VENV/.milepost-dev"
    fi
    "$VENV/bin/python" -c 'import cli.main' || fail "Milepost cannot be imported. Remove $VENV and start again."
}

megabytes() { du -sm "$1" 2>/dev/null | cut -f1; }

seconds() { say "$(($(date +%s) - STARTED)) s"; }
