"""Check the licences of what the default install brings: everything behind `glottis[all-in-one]`, as installed here.

Fails (status 1) on GPL, AGPL and every licence that this file does not know. Tools for development are not shipped and
not looked at. Run by `make check`; the default install is decided in pyproject.toml.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = "glottis"
EXTRA: Final = "all-in-one"

# SPDX identifiers, and the spellings that packages use instead.
PERMISSIVE: Final = {
    "0bsd",
    "3-clause bsd license",
    "apache 2",
    "apache 2.0",
    "apache license 2.0",
    "apache license, version 2.0",
    "apache software license",
    "apache software license 2.0",
    "apache-2.0",
    "boost software license 1.0 (bsl-1.0)",
    "bsd",
    "bsd license",
    "bsd 3-clause",
    "bsd-2-clause",
    "bsd-3-clause",
    "bsl-1.0",
    "cnri-python",
    "isc",
    "isc license (iscl)",
    "mit",
    "mit license",
    "mit-0",
    "mit-cmu",
    "postgresql",
    "psf-2.0",
    "python software foundation license",
    "python-2.0",
    "the unlicense (unlicense)",
    "unlicense",
    "zlib",
    "cc0-1.0",
}
# Weak copyleft, file by file or library by library: used unchanged as libraries, which these licences allow to anybody.
WEAK_COPYLEFT: Final = {
    "mpl-2.0",
    "mozilla public license 2.0 (mpl 2.0)",
    "lgpl-2.1-or-later",
    "lgpl-3.0-only",
    "lgpl-3.0-or-later",
    "gnu lesser general public license v2 or later (lgplv2+)",
    "gnu library or lesser general public license (lgpl)",
    "gnu lesser general public license v3 (lgplv3)",
}
WEAK_COPYLEFT_ALLOWED: Final = {
    "certifi": "MPL-2.0 on a list of certificate authorities, not on code",
    "lameenc": "LGPL-3.0: the MP3 encoder, a separate wheel that anybody may replace; used unchanged",
    "num2words": "LGPL: pure Python, imported unchanged, replaceable by installing another version",
    "orjson": "MPL-2.0 beside Apache-2.0 and MIT: file by file, used unchanged",
    "tqdm": "MPL-2.0 beside MIT: file by file, used unchanged",
}

_OPERATORS: Final = re.compile(r"\s+(?:AND|OR|WITH)\s+|[()]|\s*/\s*|\s*;\s*", re.IGNORECASE)


def shipped() -> dict[str, Distribution]:
    """Return every distribution that the default install brings, by canonical name."""
    found: dict[str, Distribution] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(ROOT, frozenset({EXTRA}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"licences: {name} is required but not installed; run: make install")
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if any(_applies(requirement, extra) for extra in ("", *extras)):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def declared(package: Distribution) -> list[str]:
    """Return the licences that a package declares, in lower case: its SPDX expression, else classifiers, else its text."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return [part.strip().lower() for part in _OPERATORS.split(expression) if part.strip()]
    classifiers = [
        value.rpartition(" :: ")[2].lower()
        for value in metadata.get_all("Classifier", ())
        if value.startswith("License :: ") and value != "License :: OSI Approved"
    ]
    if classifiers:
        return classifiers
    text = (metadata.get("License") or "").strip()
    return [part.strip().lower() for part in _OPERATORS.split(text) if part.strip()] if len(text) < 80 else []


def problem(name: str, licences: Iterable[str]) -> str | None:
    """Return what is wrong with a package's licences, None if nothing is."""
    unknown = [licence for licence in licences if licence not in PERMISSIVE]
    if not licences:
        return "declares no licence"
    if name in WEAK_COPYLEFT_ALLOWED:
        unknown = [licence for licence in unknown if licence not in WEAK_COPYLEFT]
    return f"is under {', '.join(unknown)}" if unknown else None


def main() -> int:
    """Print what is wrong; return the exit status."""
    packages = shipped()
    faults = []
    for name, package in sorted(packages.items()):
        if fault := problem(name, declared(package)):
            faults.append(f"  {name} {package.version} {fault}")
    stale = sorted(set(WEAK_COPYLEFT_ALLOWED) - set(packages))
    faults += [f"  {name} is listed in deploy/dev/licences.py but not installed: remove it there" for name in stale]
    if faults:
        print("Licences that the default install must not bring, or that nobody has looked at:", *faults, sep="\n")
        return 1
    print(f"Licences: {len(packages)} packages in the default install, all permissive or listed.")
    return 0


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


if __name__ == "__main__":
    sys.exit(main())
