"""How a child process is started: whose it is, where, with which environment, and what ends it.

A `Command` is a value: the supervisor and the tests start the same ones, so what is tested is what runs. It knows
nothing of readiness, order or restarts: read `supervisor.py` for those. Every child gets a session of its own
(a terminal's Ctrl-C reaches only the supervisor) and a death signal: the kernel delivers it when the parent is gone,
however it went, so that not even `kill -9` leaves an orphan.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any, Final

# prctl(2), PR_SET_PDEATHSIG. Linux only: elsewhere a killed supervisor leaves its children to their own devices.
_SET_DEATH_SIGNAL = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


# What children write (databases, events, logs) is for their own user only.
_UMASK: Final = 0o077


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and group that a child runs as; only root can name one."""

    user_id: int
    group_id: int


@dataclass(frozen=True, slots=True)
class Command:
    """One child process, complete: the environment is the whole environment, not an addition.

    stop_signal: asks for a clean end. death_signal: sent by the kernel when the parent dies; the default is final,
    because a child that lingered would hold its port and its lock against the next start.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    identity: Identity | None = None
    stop_signal: Signals = Signals.SIGTERM
    death_signal: Signals = Signals.SIGKILL

    def start_options(self) -> dict[str, Any]:
        """Return the keyword arguments for `subprocess.Popen` and `asyncio.create_subprocess_exec`.

        Any: the two functions take the same mixture of types.
        """
        options: dict[str, Any] = {
            "cwd": self.folder,
            "env": dict(self.environment),
            "start_new_session": True,
            "umask": _UMASK,
            "preexec_fn": _set_death_signal(self.death_signal, os.getpid()),
        }
        if self.identity is not None:
            options |= {"user": self.identity.user_id, "group": self.identity.group_id, "extra_groups": []}
        return options


def unprivileged_identity() -> Identity | None:
    """Return the identity for programs that refuse to run as root (Postgres), None when we are not root.

    `nobody` exists on every Linux and needs no change to the system; initdb insists on a name in the user database.
    """
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Identity(nobody.pw_uid, nobody.pw_gid)


def _set_death_signal(death_signal: Signals, parent: int) -> Callable[[], None]:
    # Runs between fork and exec, after the change of user: the kernel forgets the setting when the user changes.
    def set_it() -> None:
        if _prctl is None:
            return
        _prctl(_SET_DEATH_SIGNAL, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call above: no signal will come
            os.kill(os.getpid(), signal.SIGKILL)

    return set_it
