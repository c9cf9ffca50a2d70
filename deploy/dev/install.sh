#!/bin/sh
# Create the virtual environment and install what requirements.lock names, each file checked by its hash.
# Needs Python >= 3.11 with venv; as root on Debian a missing venv module is installed, else the command is named.
set -eu
: "${PYTHON:?}" "${VENV:?}"

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Python 3.11 or newer is needed; $PYTHON is $("$PYTHON" -V 2>&1). Name another one: make install PYTHON=/path/to/python3" >&2
    exit 2
}
if ! "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing Debian's python3-venv ..."
        apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
    else
        echo "Python's venv module is missing. Install it: sudo apt-get install python3-venv" >&2
        exit 2
    fi
fi

if [ -L "$VENV" ]; then
    # The editable install would be pointed at this checkout for everybody who shares the environment.
    echo "$VENV is a link to another checkout's environment; nothing is installed into it. Remove the link first." >&2
    exit 2
fi
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
[ -x "$VENV/bin/uv" ] || "$VENV/bin/python" -m pip install --quiet --require-hashes -r requirements-uv.lock
echo "Installing the locked packages (about 2 GB on disk the first time) ..."
"$VENV/bin/uv" pip install --python "$VENV/bin/python" --require-hashes -r requirements.lock
"$VENV/bin/uv" pip install --python "$VENV/bin/python" --quiet --no-deps --no-build-isolation -e .
echo "Installed into $VENV."
