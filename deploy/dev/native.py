"""Compiles the modules that every exchange passes through, with mypyc: `make native` writes them to build/native.

The sources stay the truth, and run as they are everywhere: what is compiled is the same modules, beside copies of the
others, and a process uses them by having that folder before the checkout on its PYTHONPATH. `--check` only translates
them, which needs no compiler: code that cannot be compiled is found by `make check`. docs/adr/0075 says what it gains and
what it asks of the sources. Needs a C compiler and Python's headers (Debian: gcc, python3-dev).
"""

from __future__ import annotations

import argparse
import ast
import builtins
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "build" / "native"
PACKAGES: Final = ("contracts", "policy", "gateway")
MODULES: Final = (
    "contracts/codec.py",
    "contracts/ids.py",
    "policy/access.py",
    "policy/audio.py",
    "policy/authenticate.py",
    "policy/authorize.py",
    "policy/contexts.py",
    "policy/decide.py",
    "policy/events.py",
    "policy/facts.py",
    "policy/frames.py",
    "policy/index.py",
    "policy/journal.py",
    "policy/keyring.py",
    "policy/peek.py",
    "policy/providers/registry.py",
    "policy/recall.py",
    "policy/refusal.py",
    "policy/repeated.py",
    "policy/resolve.py",
    "policy/revoked.py",
    "policy/rewrite.py",
    "policy/route.py",
    "policy/scan.py",
    "policy/session.py",
    "policy/usage.py",
    "policy/world.py",
    "gateway/http1.py",
    "gateway/liveness.py",
    "gateway/edge/answers.py",
    "gateway/edge/context.py",
    "gateway/edge/http_relay.py",
    "gateway/edge/masking.py",
    "gateway/edge/metering.py",
    "gateway/edge/protocol.py",
    "gateway/edge/turn.py",
    "gateway/edge/websocket_handshake.py",
    "gateway/edge/websocket_relay.py",
    "gateway/state/credentials.py",
    "gateway/state/snapshot.py",
    "gateway/state/workspace_settings.py",
    "gateway/telemetry/batches.py",
    "gateway/telemetry/counting.py",
    "gateway/telemetry/hashing.py",
    "gateway/telemetry/lines.py",
    "gateway/telemetry/metrics.py",
    "gateway/telemetry/recorder.py",
    "gateway/telemetry/ring.py",
    "gateway/telemetry/spans.py",
    "gateway/telemetry/spool.py",
    "gateway/telemetry/trace.py",
    "gateway/telemetry/usage.py",
    "gateway/upstream/connection.py",
    "gateway/upstream/dial.py",
    "gateway/upstream/origin.py",
    "gateway/upstream/upstreams.py",
)

# One extension for all, so that they call each other without Python between; run in the folder that is built.
_TRANSLATE: Final = """
import sys
from mypyc.build import mypycify
made = mypycify(sys.argv[1:], opt_level="2", debug_level="0", group_name="glottis_native")
"""
_COMPILE: Final = (
    _TRANSLATE
    + """
from setuptools import setup
setup(name="glottis-native", packages=[], py_modules=[], ext_modules=made, script_args=["build_ext", "--inplace"])
"""
)


_EVALUATED: Final = frozenset(("bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple"))


def protocols() -> frozenset[str]:
    """Return the names of the packages' Protocol classes."""
    return frozenset(
        node.name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    )


def unreadable_attributes(module: str, protocols: frozenset[str]) -> list[str]:
    """Return the attributes of classes that mypyc translates without a word, and that fail when they are used.

    It looks for all but a few built-in types in the module, in a dataclass also where they are quoted; and it does not set
    a default of None on the class where the other type is a Protocol.
    """
    found = []
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        for line in node.body:
            if not isinstance(line, ast.AnnAssign):
                continue
            name = ast.unparse(line.annotation)
            if not is_dataclass and isinstance(line.value, ast.Constant) and protocols & set(name.split(" | ")):
                found.append(f"{module}:{line.lineno}: set the default in __init__, for a Protocol")
            if is_dataclass:
                name = name.strip("'\"")
            if hasattr(builtins, name) and name not in _EVALUATED:
                found.append(f"{module}:{line.lineno}: {name}: put it in quotes; in a dataclass, say Any")
    return found


def build(target: Path, code: str) -> None:
    """Put copies of the packages into the folder, and run the code on those that are to be compiled."""
    known = protocols()
    if found := [line for module in MODULES for line in unreadable_attributes(module, known)]:
        sys.exit("\n".join(found))
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", target)  # mypy's settings
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, *MODULES], cwd=target, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\nThe modules could not be compiled, see above.")
    (target / "pyproject.toml").unlink()
    shutil.rmtree(target / "build")


def main() -> None:
    """Build, or check."""
    parser = argparse.ArgumentParser(description="Compile the gateway's hot modules.")
    parser.add_argument("--check", action="store_true", help="translate them only, and keep nothing")
    if parser.parse_args().check:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder), _TRANSLATE)
        return
    # Made beside it and put there whole: a process that starts meanwhile finds the old one or the new one.
    fresh = TARGET.with_name("native.new")
    for folder in (fresh, TARGET.with_name("native.old")):
        shutil.rmtree(folder, ignore_errors=True)
    fresh.mkdir(parents=True)
    build(fresh, _COMPILE)
    if TARGET.exists():
        TARGET.rename(TARGET.with_name("native.old"))
    fresh.rename(TARGET)
    shutil.rmtree(TARGET.with_name("native.old"), ignore_errors=True)
    print(f"Compiled {len(MODULES)} modules into {TARGET.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
