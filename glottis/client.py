"""The control plane's REST API for the commands that use it: where it is, with which token, and its refusals in plain words.

Standard library only: a command line must not need an extra. On the machine of `glottis up` address and token are read
from the data folder's `client.json`; elsewhere they are GLOTTIS_CONTROL_PLANE_URL and GLOTTIS_TOKEN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from contracts.secret import Secret
from glottis.errors import SetupError

DEFAULT_DATA_DIR: Final = Path(".glottis")
_TIMEOUT_SECONDS: Final = 60
_PIECE_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The API at `url`, asked with an admin's token."""

    url: str
    token: Secret

    @classmethod
    def find(cls, environ: Mapping[str, str], data_dir: Path = DEFAULT_DATA_DIR) -> ControlPlane:
        """Return the control plane that the environment names, else the one that `glottis up` runs from `data_dir`.

        Raises SetupError if there is neither.
        """
        url, token = environ.get("GLOTTIS_CONTROL_PLANE_URL", ""), environ.get("GLOTTIS_TOKEN", "")
        if url and token:
            return cls(url.rstrip("/"), Secret(token))
        file = data_dir / "client.json"
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return cls(str(found["url"]).rstrip("/"), Secret(str(found["token"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SetupError(
                f"No control plane is known: {file} cannot be read and GLOTTIS_CONTROL_PLANE_URL or GLOTTIS_TOKEN is not set.",
                "Set both variables, or name the folder of a running `glottis up` with --data-dir.",
            ) from error

    def request(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        media_type: str = "",
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> bytes:
        """Return the answer's body. Raises SetupError with the API's own sentence for a refusal, or if it is away."""
        with self._answer(method, path, query, body, media_type, timeout_seconds) as answer:
            data: bytes = answer.read()
            return data

    def lines(self, path: str) -> Iterator[bytes]:
        """Yield the lines of a long answer as they come. Raises SetupError, also where it breaks off."""
        rest = b""
        with self._answer("GET", path) as answer:
            while data := answer.read(_PIECE_BYTES):  # by lines, urllib takes an answer that broke off for whole
                *whole, rest = (rest + data).split(b"\n")
                yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        media_type: str = "",
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> Iterator[Any]:  # Any: urllib's own response
        headers = {"Authorization": f"Bearer {self.token.reveal().decode()}", "Accept": "*/*"}
        if body is not None:
            headers["Content-Type"] = media_type or "application/json"
        address = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            with urlopen(Request(address, data=body, headers=headers, method=method), timeout=timeout_seconds) as answer:
                yield answer
        except HTTPError as error:
            raise _refusal(error.code, error.read()) from error
        except IncompleteRead as error:
            raise SetupError(f"The answer of the control plane at {self.url} broke off.", "Try again; see its log.") from error
        except (URLError, HTTPException, OSError) as error:
            raise SetupError(f"The control plane at {self.url} does not answer.", "Start it, or correct the address.") from error

    def json(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> Any:
        """Return the answer's JSON (Any: it is JSON). Raises SetupError."""
        encoded = None if body is None else json.dumps(body).encode()
        data = self.request(method, path, query, encoded, timeout_seconds=timeout_seconds)
        return json.loads(data) if data else None

    def items(self, path: str, query: Sequence[tuple[str, str]] = ()) -> list[Any]:
        """Return every item of a list, page after page (Any: JSON objects). Raises SetupError."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = self.json("GET", path, [*query, ("limit", "500"), *([("cursor", cursor)] if cursor else [])])
            found += page["items"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return found


class Refused(SetupError):
    """The API refused. reason: its stable one; mistakes: field (as in the request's body) and sentence of each it lists."""

    def __init__(self, what: str, to_do: str, reason: str, mistakes: Sequence[tuple[str, str]]) -> None:
        super().__init__(what, to_do)
        self.reason = reason
        self.mistakes = tuple(mistakes)


def _refusal(status: int, body: bytes) -> SetupError:
    """Turn problem details (RFC 9457) into the two sentences of a SetupError."""
    try:
        problem = json.loads(body)
        mistakes = [(str(one.get("field", "")), str(one["sentence"])) for one in problem.get("errors", []) if "sentence" in one]
        what = " ".join(_named(field, sentence) for field, sentence in mistakes) or str(problem["detail"])
        return Refused(what, f"{problem['help']} (request {problem['request_id']})", str(problem["reason"]), mistakes)
    except (ValueError, KeyError, TypeError, AttributeError):
        return SetupError(f"The control plane answered with status {status}.", "See its log.")


def _named(field: str, sentence: str) -> str:
    # "Input should be greater than 60" alone leaves open which input; many sentences name theirs already.
    return sentence if not field or field in sentence else f"{field}: {sentence}"
