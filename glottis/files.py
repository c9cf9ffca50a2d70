"""Workspace files on this machine: read, checked, and what they refer to fetched from the environment and from files.

The one place where a reference (`env:`, `file:`, `value:`) becomes bytes for the command line. Paths are taken from the
file's own folder, so that a file works from wherever the command is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from contracts.secret import Secret
from glottis.errors import SetupError
from policy.workspace_file import InvalidWorkspaceFile, Need, Problem, WorkspaceFile, located, material_problem, needs, parse


class InvalidFile(click.ClickException):
    """A workspace file with mistakes: one line each, as compilers write them. Exit status 1."""

    def __init__(self, file: Path, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{file} has {len(problems)} {'mistake' if len(problems) == 1 else 'mistakes'}")
        self.file = file
        self.problems = problems

    def show(self, file: object = None) -> None:
        del file
        for problem in self.problems:
            place = f"{self.file}:{problem.line}" if problem.line is not None else str(self.file)
            field = f" {problem.field}:" if problem.field else ""
            click.echo(f"{place}:{field} {problem.sentence}", err=True)
        click.secho(f"{self.message}.", fg="red", err=True)


def read_workspace_file(path: Path) -> WorkspaceFile:
    """Return the checked file. Which private origins are allowed is the control plane's knowledge: it checks those.

    Raises InvalidFile with every mistake, SetupError if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SetupError(f"{path} is not UTF-8 text.", "Save it as UTF-8.") from error
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}.", "Check the path and its permissions.") from error
    try:
        return parse(text, None)
    except InvalidWorkspaceFile as invalid:
        raise InvalidFile(path, invalid.problems) from invalid


def located_in(path: Path, mistakes: Sequence[tuple[str, str]]) -> InvalidFile:
    """Return what is wrong with a file that was read already, as the control plane told it: field and sentence of each."""
    return InvalidFile(path, located(path.read_text(encoding="utf-8"), mistakes))


def fetch_material(path: Path, file: WorkspaceFile, environ: Mapping[str, str]) -> dict[str, Secret]:
    """Return what the file refers to, by `Need.key`. Raises InvalidFile for what is missing or cannot be used."""
    material: dict[str, Secret] = {}
    problems: list[Problem] = []
    for need in needs(file):
        try:
            material[need.key] = _fetched(need, path.parent, environ)
        except LookupError as missing:
            problems.append(Problem(None, need.key, str(missing.args[0])))
            continue
        if (problem := material_problem(need.key, material[need.key])) is not None:
            problems.append(problem)
    if problems:
        raise InvalidFile(path, tuple(problems))
    return material


def _fetched(need: Need, folder: Path, environ: Mapping[str, str]) -> Secret:
    """Return the bytes, without a trailing line break. Raises LookupError with a sentence."""
    kind, target = need.reference.kind, need.reference.target
    if kind == "value":
        return Secret(target)
    if kind == "env":
        if not environ.get(target):
            raise LookupError(f"The environment variable {target} is not set.")
        return Secret(environ[target])
    try:
        return Secret((folder / target).read_bytes().rstrip(b"\r\n"))
    except OSError as error:
        raise LookupError(f"{folder / target} cannot be read: {error.strerror}.") from error
