"""One `glottis up` a data folder: a lock that the kernel gives back when its holder is gone, however it went."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glottis.errors import SetupError


@contextmanager
def lock_on(data_folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if it is missing. Raises SetupError if another process holds it or it is read-only."""
    try:
        if not data_folder.exists():
            data_folder.mkdir(parents=True)
            # Whatever the umask: the database's user passes through to its own folder, and nobody else gets in.
            data_folder.chmod(0o711)
        descriptor = os.open(data_folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as fault:
        raise SetupError(
            f"Cannot write the data folder {data_folder}: {fault.strerror}.",
            "Name one that you can write with --data-dir.",
        ) from fault
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip()
            raise SetupError(
                f"Another `glottis up` (pid {holder}) uses {data_folder}.",
                f"Stop it (kill {holder}), or name another folder with --data-dir and other ports with --port-base.",
            ) from None
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
