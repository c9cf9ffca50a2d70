"""The workspace file: a workspace's people, provider accounts, models, grants and prices in one commented YAML text.

`glottis apply` sends it to the control plane and `glottis gateway --config` runs from it alone; both read it here, so a
file that one takes the other takes. Text in; a checked `WorkspaceFile`, or every problem with its line and field, out.
Secrets stay references (`env:NAME`, `file:PATH`, `value:TEXT`): the caller resolves what `needs` lists and hands the
bytes to `configuration`, which gives the records of `contracts.snapshot`. Read next: `deploy/examples/workspace.yaml`.
"""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
import yaml

from contracts.ids import is_handle
from contracts.prices import PRICES_ARE_PER, Price
from contracts.secret import Secret
from contracts.snapshot import (
    Account,
    CollaboratorRole,
    CredentialScheme,
    Grant,
    Issuer,
    Model,
    ModelType,
    Principal,
    Snapshot,
    Team,
    Workspace,
)
from policy.origins import OriginRefused, checked_origin
from policy.providers.profile import Operation

LARGEST_FILE_CHARACTERS = 32 * 1024 * 1024
_LARGEST_NODE_COUNT = 4_000_000

WorkspaceRole: TypeAlias = Literal["owner", "admin", "member"]
Provider: TypeAlias = Literal["cartesia", "kokoro"]
Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]

MODEL_NAMES: dict[str, dict[ModelType, re.Pattern[str]]] = {
    "cartesia": {
        "text-to-speech": re.compile(r"sonic(-[a-z0-9.-]+)?\Z"),
        "speech-to-text": re.compile(r"ink(-[a-z0-9.-]+)?\Z"),
    },
    "kokoro": {"text-to-speech": re.compile(r"kokoro(-[a-z0-9.-]+)?\Z")},
}
"""provider -> type -> the ids of its models. A model is registered under the provider's own id: nothing is rewritten"""

_EXPIRY = re.compile(r"finish-session\Z|hard\Z|grace:(0|[1-9][0-9]{0,5})\Z")
_CURRENCY = re.compile(r"[A-Z]{3}\Z")
_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
"""of a JSON Web Key that can sign (RFC 7518 §6)"""


class Reference:
    """Where a text outside the file stands: an environment variable, a file, or (for trials) the text itself.

    `kind`: `env`, `file` or `value`; `target`: the variable, the path or the text. A value is not printed.
    """

    __slots__ = ("__target", "kind")
    PATTERN = r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+|value:(.|\n)+)$"

    def __init__(self, text: str) -> None:
        self.kind, _, self.__target = text.partition(":")

    @property
    def target(self) -> str:
        """Return the variable's name, the path, or the text in clear."""
        return self.__target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and (self.kind, self.target) == (other.kind, other.target)

    def __hash__(self) -> int:
        return hash((self.kind, self.__target))

    def __repr__(self) -> str:
        return f"Reference({self.kind}:{'…' if self.kind == 'value' else self.__target})"


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file; a field that is not listed is an error, so that a misspelt rule is never silently none."""


class WorkspaceEntry(_Entry, frozen=True):
    """The tenant. `id` is for ever and stands in keys, subjects and reports; `name` is for people."""

    id: str
    name: str = ""
    defaults: dict[str, str] = {}
    """provider -> account, used when a request names no model"""
    span_sampling: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    transcript_key: Reference | None = None
    """`glottis gateway --config` only: keys the transcript hash; at least 16 bytes"""


class IssuerEntry(_Entry, frozen=True):
    """Who signs caller tokens. Without `jwks` and `jwks_uri`, the key set's address is discovered."""

    name: str
    issuer: str
    audiences: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    kind: Literal["oidc", "glottis"] = "oidc"
    jwks_uri: str | None = None
    jwks: Reference | None = None
    """the whole key set, a JWKS document; `file:` as a rule"""
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)] = ("RS256", "ES256", "EdDSA")
    subject_claim: str = "sub"
    email_claim: str | None = None
    groups_claim: str | None = None
    group_teams: dict[str, str] = {}
    """group -> team"""
    admits_unregistered: bool = False
    expiry: str = "finish-session"
    """`finish-session`, `grace:<seconds>` or `hard`"""
    leeway_seconds: Annotated[int, msgspec.Meta(ge=0, le=60)] = 30


class TeamEntry(_Entry, frozen=True):
    """A set of users and service accounts. Who is in it stands at each of them."""

    name: str
    defaults: dict[str, str] = {}
    allowed_voices: tuple[str, ...] | None = None
    """voices that its grants open; absent: any"""


class UserEntry(_Entry, frozen=True):
    """A person. `issuer` and `subject` identify; the e-mail address only finds."""

    name: str
    email: str | None = None
    role: WorkspaceRole = "member"
    teams: tuple[str, ...] = ()
    """the first one is charged where nothing else says"""
    issuer: str | None = None
    subject: str | None = None
    disabled: bool = False


class ServiceAccountEntry(_Entry, frozen=True):
    """A program that calls with a token of ours."""

    name: str
    teams: tuple[str, ...] = ()
    disabled: bool = False


class CollaboratorEntry(_Entry, frozen=True):
    """Who may route through an account: `user:<name>`, `service_account:<name>` or `team:<name>`."""

    subject: str
    role: CollaboratorRole = "user"
    operations: tuple[Operation, ...] = ()
    """granted beyond the role's own"""


class ModelEntry(_Entry, frozen=True):
    """A model of an account, by the provider's own id."""

    name: str
    type: ModelType
    priority: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    only: tuple[str, ...] | None = None
    """absent: whoever may use the account; else these subjects alone, and an empty list means nobody"""


class AccountEntry(_Entry, frozen=True):
    """An account at a provider: where it is reached, with which credential, by whom."""

    name: str
    provider: Provider
    origin: str
    credential: Reference | None = None
    """absent: the control plane keeps what it has"""
    retiring_credential: Reference | None = None
    """while a credential is being rotated: the one before, which the provider still takes"""
    credential_scheme: CredentialScheme = "bearer"
    priority: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100
    ca: Reference | None = None
    """a PEM file of certificate authorities to trust instead of the system's"""
    tls_server_name: str | None = None
    allowed_voices: tuple[str, ...] | None = None
    forwards_trace_headers: bool = False
    region: str = ""
    plan: str = ""
    """the provider's plan, for people"""
    disabled: bool = False
    collaborators: tuple[CollaboratorEntry, ...] | None = None
    """a list that is here is whole: who is not in it loses the grant; absent: left as it is"""
    models: tuple[ModelEntry, ...] | None = None
    """likewise"""


class PriceEntry(_Entry, frozen=True):
    """What one unit costs from a date on: a character, a second of audio, or a request."""

    provider: Provider
    unit: Literal["characters", "audio_in_ms", "audio_out_ms", "requests"]
    price: Annotated[Decimal, msgspec.Meta(description="a decimal number, in the currency")]
    account: str | None = None
    model: str = "*"
    currency: str = "USD"
    effective: str | None = None
    """a date (from midnight UTC) or a time of RFC 3339; absent: always"""


class WorkspaceFile(_Entry, frozen=True):
    """The whole file, checked."""

    version: Literal[1]
    workspace: WorkspaceEntry
    issuers: tuple[IssuerEntry, ...] = ()
    teams: tuple[TeamEntry, ...] = ()
    users: tuple[UserEntry, ...] = ()
    service_accounts: tuple[ServiceAccountEntry, ...] = ()
    accounts: tuple[AccountEntry, ...] = ()
    prices: tuple[PriceEntry, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `line`: from 1, None where there was no text; `field`: for example `accounts[0].origin`."""

    line: int | None
    field: str
    sentence: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        return f"{where}{self.field}: {self.sentence}" if self.field else f"{where}{self.sentence}"


class InvalidWorkspaceFile(ValueError):
    """A file that cannot be taken; `problems` holds all that was found, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Need:
    """Something that the file refers to and the caller must fetch. `key` names it in `configuration`'s material."""

    key: str
    reference: Reference
    is_secret: bool


@dataclass(frozen=True)
class Configuration:
    """What a gateway runs from without a control plane: records (ids are names) and the secrets, not sealed.

    `credentials`: (account id, slot) -> the provider's credential; `transcript_key`: None if the file has none.
    """

    snapshot: Snapshot
    credentials: Mapping[tuple[str, Literal["active", "retiring"]], Secret]
    transcript_key: Secret | None
    prices: tuple[Price, ...]


AllowedOrigins: TypeAlias = tuple[str, ...] | None
_Path: TypeAlias = tuple[str | int, ...]
_Lines: TypeAlias = dict[_Path, int]


def parse(text: str, allowed_origins: AllowedOrigins = ()) -> WorkspaceFile:
    """Return the checked file. allowed_origins: the operator's exceptions to the origin rules; None: not known here, so
    origins are checked for their form alone.

    Raises InvalidWorkspaceFile with every problem that was found, each with its line and field.
    """
    document, lines = _read(text)
    return _checked(document, lines, allowed_origins)


def parse_document(document: Any, allowed_origins: AllowedOrigins = ()) -> WorkspaceFile:
    """Return the checked file from its JSON form (what `to_document` gave), with the same rules. Raises InvalidWorkspaceFile."""
    return _checked(document, {}, allowed_origins)


def located(text: str, mistakes: Iterable[tuple[str, str]]) -> tuple[Problem, ...]:
    """Return problems of a file that `parse` took, found elsewhere, each with the line of its field or of what holds it.

    mistakes: field, as in `Problem`, and sentence.
    """
    _, lines = _read(text)
    problems = _Problems(lines)
    for field, sentence in mistakes:
        steps = re.findall(r"[^.\[\]]+", field)
        problems.add(tuple(int(step) if step.isdecimal() else step for step in steps), sentence)
    return tuple(problems.in_order())


def to_document(file: WorkspaceFile) -> dict[str, Any]:
    """Return the JSON form of the file, which travels to the control plane beside the material that it needs.

    Where a reference stood it only says that there is one: names of variables and files stay on the caller's machine.
    """
    document: dict[str, Any] = msgspec.to_builtins(file, enc_hook=_encode_reference)
    return document


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the file, for editors."""
    schema = msgspec.json.schema(WorkspaceFile, schema_hook=_reference_schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Glottis workspace file",
        **schema,
    }


def needs(file: WorkspaceFile) -> tuple[Need, ...]:
    """Return what the file refers to outside itself, each with the key under which `configuration` looks for it."""
    found: list[Need] = []
    if file.workspace.transcript_key is not None:
        found.append(Need("workspace.transcript_key", file.workspace.transcript_key, is_secret=True))
    for issuer in file.issuers:
        if issuer.jwks is not None:
            found.append(Need(f"issuers.{issuer.name}.jwks", issuer.jwks, is_secret=False))
    for account in file.accounts:
        for slot, reference in _slots(account):
            found.append(Need(f"accounts.{account.name}.credential.{slot}", reference, is_secret=True))
        if account.ca is not None:
            found.append(Need(f"accounts.{account.name}.ca", account.ca, is_secret=False))
    return tuple(found)


def configuration(file: WorkspaceFile, material: Mapping[str, Secret], created_at_ms: int, revision: int = 1) -> Configuration:
    """Return the records that the file stands for, with names as ids, and its secrets.

    material: `Need.key` -> the bytes, for every need of the file (a KeyError is the caller's mistake).
    Raises InvalidWorkspaceFile for material that cannot be used: an empty credential, a key set that is not JSON.
    """
    workspace = file.workspace.id
    problems = [problem for need in needs(file) if (problem := material_problem(need.key, material[need.key])) is not None]
    if problems:
        raise InvalidWorkspaceFile(problems)
    credentials = {
        (account.name, slot): material[f"accounts.{account.name}.credential.{slot}"]
        for account in file.accounts
        for slot, _ in _slots(account)
    }
    snapshot = Snapshot(
        revision=revision,
        created_at_ms=created_at_ms,
        workspaces=(
            Workspace(
                id=workspace,
                name=file.workspace.name or workspace,
                default_accounts=file.workspace.defaults,
                span_sampling=file.workspace.span_sampling,
            ),
        ),
        issuers=tuple(
            Issuer(
                id=issuer.name,
                workspace=workspace,
                issuer=issuer.issuer,
                audiences=issuer.audiences,
                kind=issuer.kind,
                jwks_uri=issuer.jwks_uri,
                jwks=None if issuer.jwks is None else material[f"issuers.{issuer.name}.jwks"].reveal(),
                algorithms=issuer.algorithms,
                subject_claim=issuer.subject_claim,
                email_claim=issuer.email_claim,
                groups_claim=issuer.groups_claim,
                group_teams=issuer.group_teams,
                admits_unregistered=issuer.admits_unregistered,
                expiry=issuer.expiry,
                leeway_seconds=issuer.leeway_seconds,
            )
            for issuer in file.issuers
        ),
        principals=(
            *(
                Principal(
                    id=user.name,
                    workspace=workspace,
                    kind="user",
                    name=user.name,
                    teams=user.teams,
                    issuer_id=user.issuer,
                    subject=user.subject,
                    is_disabled=user.disabled,
                )
                for user in file.users
            ),
            *(
                Principal(
                    id=service.name,
                    workspace=workspace,
                    kind="service_account",
                    name=service.name,
                    teams=service.teams,
                    is_disabled=service.disabled,
                )
                for service in file.service_accounts
            ),
        ),
        teams=tuple(
            Team(
                id=team.name,
                workspace=workspace,
                name=team.name,
                default_accounts=team.defaults,
                allowed_voices=team.allowed_voices,
            )
            for team in file.teams
        ),
        accounts=tuple(
            Account(
                id=account.name,
                workspace=workspace,
                name=account.name,
                provider=account.provider,
                origin=checked_origin(account.origin, (account.origin,)).text,
                credential_scheme=account.credential_scheme,
                priority=account.priority,
                ca_pem=None if account.ca is None else material[f"accounts.{account.name}.ca"].reveal(),
                tls_server_name=account.tls_server_name,
                allowed_voices=account.allowed_voices,
                forwards_trace_headers=account.forwards_trace_headers,
                region=account.region,
                is_disabled=account.disabled,
            )
            for account in file.accounts
        ),
        models=tuple(
            Model(
                id=f"{account.name}/{model.name}",
                workspace=workspace,
                account=account.name,
                name=model.name,
                type=model.type,
                priority=model.priority,
                only=model.only,
            )
            for account in file.accounts
            for model in account.models or ()
        ),
        grants=tuple(
            Grant(
                id=f"{account.name}/{collaborator.subject}",
                workspace=workspace,
                account=account.name,
                subject=collaborator.subject,
                role=collaborator.role,
                operations=collaborator.operations,
            )
            for account in file.accounts
            for collaborator in account.collaborators or ()
        ),
    )
    prices = tuple(
        Price(
            workspace=workspace,
            provider=price.provider,
            account=price.account or "",
            model=price.model,
            unit=price.unit,
            price=format(price.price, "f"),
            currency=price.currency,
            effective_ms=effective_ms(price.effective),
        )
        for price in file.prices
    )
    return Configuration(snapshot, credentials, material.get("workspace.transcript_key"), prices)


def effective_ms(text: str | None) -> int:
    """Return the start of a price as Unix milliseconds; None is 0. Without a zone it is UTC. Raises ValueError."""
    if text is None:
        return 0
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def material_problem(key: str, value: Secret) -> Problem | None:
    """Return what is wrong with fetched material, or None. key: a `Need.key`; the value is never quoted."""
    data = value.reveal()
    if ".credential." in key:
        if not data or len(data) > 4096 or any(byte <= 0x20 or byte >= 0x7F for byte in data):
            return Problem(None, key, "A credential is 1 to 4096 visible ASCII characters without spaces or line breaks.")
    elif key.endswith(".jwks"):
        if (sentence := key_set_problem(data)) is not None:
            return Problem(None, key, sentence)
    elif key.endswith(".ca"):
        if (sentence := authorities_problem(data)) is not None:
            return Problem(None, key, sentence)
    elif key == "workspace.transcript_key" and len(data) < 16:
        return Problem(None, key, "A transcript key has at least 16 bytes.")
    return None


def key_set_problem(data: bytes) -> str | None:
    """Return what is wrong with a JWKS document, or None. It is published as it is: a private or shared key in it is none."""
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        return 'That is not a JWKS document: JSON of the form {"keys": [...]}.'
    if any(isinstance(key, dict) and _PRIVATE_MEMBERS & key.keys() for key in document["keys"]):
        return "That key set holds private or shared keys; give the public ones alone."
    return None


def authorities_problem(data: bytes) -> str | None:
    """Return what is wrong at first sight with a PEM file of certificate authorities, or None."""
    if b"-----BEGIN CERTIFICATE-----" not in data:
        return "That is not a PEM file with certificates."
    if b"PRIVATE KEY-----" in data:
        return "That file holds a private key; give the certificates alone."
    return None


def _slots(account: AccountEntry) -> Iterator[tuple[Literal["active", "retiring"], Reference]]:
    if account.credential is not None:
        yield "active", account.credential
    if account.retiring_credential is not None:
        yield "retiring", account.retiring_credential


# --- Text to plain values, with the line of each -------------------------------------------------------------------


_RESOLVERS = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp", ":merge", ":value"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
"""YAML's safe types, but numbers with a fraction and dates stay text: prices are decimals, and dates are checked by us"""


class _Loader(yaml.SafeLoader):
    """Reads in Python, and says best what is wrong."""

    yaml_implicit_resolvers = _RESOLVERS


# libyaml's parser, where PyYAML was built with it, ten times as fast. Any: the class depends on how it was built.
_FastLoader: Any = type("_FastLoader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {"yaml_implicit_resolvers": _RESOLVERS})
_FAST_FROM_CHARACTERS = 65_536


def _read(text: str) -> tuple[Any, _Lines]:
    if len(text) > LARGEST_FILE_CHARACTERS:
        raise InvalidWorkspaceFile([Problem(None, "", f"The file is longer than {LARGEST_FILE_CHARACTERS} characters.")])
    try:
        if len(text) >= _FAST_FROM_CHARACTERS:
            try:
                return _loaded(text, _FastLoader)
            except yaml.YAMLError:
                pass  # the other one words it better
        return _loaded(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        sentence = f"This is not YAML: {error.problem or error.context}."
        raise InvalidWorkspaceFile([Problem(mark.line + 1 if mark else None, "", sentence)]) from error
    except yaml.YAMLError as error:
        raise InvalidWorkspaceFile([Problem(None, "", "This is not YAML: it holds a character that YAML forbids.")]) from error
    except RecursionError as error:
        raise InvalidWorkspaceFile([Problem(None, "", "The file is nested too deeply.")]) from error


def _loaded(text: str, loader_class: Any) -> tuple[Any, _Lines]:
    lines: _Lines = {}
    # The constructor scans for characters that YAML forbids, so it can refuse as well.
    loader = loader_class(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise InvalidWorkspaceFile([Problem(1, "", "The file is empty.")])
        return _plain(loader, node, (), lines), lines
    finally:
        loader.dispose()


def _plain(loader: Any, node: yaml.Node, path: _Path, lines: _Lines) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if len(lines) > _LARGEST_NODE_COUNT:
        raise InvalidWorkspaceFile([Problem(line, "", "The file holds too many values; aliases (`*name`) count each time.")])
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*path, index), lines) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise InvalidWorkspaceFile([Problem(key_node.start_mark.line + 1, _text(path), "A field's name must be text.")])
            if key in mapping:
                sentence = f"`{key}` is given twice."
                raise InvalidWorkspaceFile([Problem(key_node.start_mark.line + 1, _text((*path, key)), sentence)])
            lines[(*path, key)] = key_node.start_mark.line + 1
            mapping[key] = _plain(loader, value_node, (*path, key), lines)
        return mapping
    if node.tag not in _SCALARS:
        raise InvalidWorkspaceFile([Problem(line, _text(path), f"The tag {node.tag} is not allowed.")])
    try:
        return loader.construct_object(node)
    except ValueError as error:
        raise InvalidWorkspaceFile([Problem(line, _text(path), "That value cannot be read; put it in quotes.")]) from error


_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "bool", "null")}


def _text(path: _Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" if number else step for number, step in enumerate(path))


# --- Plain values to entries ----------------------------------------------------------------------------------------

_SECTIONS: dict[str, type[_Entry]] = {
    "issuers": IssuerEntry,
    "teams": TeamEntry,
    "users": UserEntry,
    "service_accounts": ServiceAccountEntry,
    "accounts": AccountEntry,
    "prices": PriceEntry,
}
_ENTRIES: tuple[type[_Entry], ...] = (
    WorkspaceFile,
    WorkspaceEntry,
    *_SECTIONS.values(),
    CollaboratorEntry,
    ModelEntry,
)
_FIELDS = {name for entry in _ENTRIES for name in entry.__struct_fields__}
_CHOICES: dict[str, tuple[str, ...]] = {
    "provider": get_args(Provider),
    "type": get_args(ModelType),
    "unit": tuple(PRICES_ARE_PER),
    "credential_scheme": get_args(CredentialScheme),
    "operations": get_args(Operation),
    "algorithms": get_args(Algorithm),
    "kind": ("oidc", "glottis"),
}


def _checked(document: Any, lines: _Lines, allowed_origins: AllowedOrigins) -> WorkspaceFile:
    problems = _Problems(lines)
    if not isinstance(document, dict):
        raise InvalidWorkspaceFile([problems.made((), "A workspace file is a mapping that begins with `version: 1`.")])
    for field in document:
        if field not in WorkspaceFile.__struct_fields__:
            problems.add((field,), _unknown(str(field)))
    if document.get("version") != 1:
        problems.add(("version",), "Write `version: 1`; this release knows no other.")
    workspace = problems.converted(document.get("workspace"), WorkspaceEntry, ("workspace",))
    sections: dict[str, list[tuple[int, Any]]] = {}
    for section, entry in _SECTIONS.items():
        items = document.get(section)
        if items is not None and not isinstance(items, list | tuple):
            problems.add((section,), "This must be a list: each entry begins with `- `.")
            items = None
        converted = [(index, problems.converted(item, entry, (section, index))) for index, item in enumerate(items or ())]
        sections[section] = [(index, value) for index, value in converted if value is not None]
    if workspace is not None and not problems.found:
        file = WorkspaceFile(
            version=1, workspace=workspace, **{section: tuple(value for _, value in items) for section, items in sections.items()}
        )
        _check_meaning(file, problems, allowed_origins)
        if not problems.found:
            return file
    raise InvalidWorkspaceFile(problems.in_order())


class _Problems:
    """What was found so far, with the line of the nearest value that the text has."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self.found: list[Problem] = []

    def made(self, path: _Path, sentence: str) -> Problem:
        line = next((self._lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self._lines), None)
        return Problem(line, _text(path), sentence)

    def add(self, path: _Path, sentence: str) -> None:
        self.found.append(self.made(path, sentence))

    def in_order(self) -> list[Problem]:
        return sorted(self.found, key=lambda problem: problem.line or 0)

    def converted(self, value: Any, entry: type[Any], path: _Path) -> Any:
        """Return the entry, or None after noting the first thing that is wrong with its shape."""
        try:
            return msgspec.convert(value, entry, strict=False, dec_hook=_decode_reference)
        except msgspec.ValidationError as error:
            message, _, inner = str(error).partition(" - at `")
            inner_path, field = _steps(inner.rstrip("`")), None
            if unknown := re.search(r"contains unknown field `(.*)`", message, re.DOTALL):
                field, sentence = unknown.group(1), _unknown(unknown.group(1))
            elif missing := re.search(r"missing required field `(.*)`", message):
                field, sentence = missing.group(1), "This field is missing."
            else:
                sentence = _plain_sentence(message, next((s for s in reversed((*path, *inner_path)) if isinstance(s, str)), ""))
            self.add((*path, *inner_path, *(() if field is None else (field,))), sentence)
            return None


def _steps(path: str) -> _Path:
    """Return the steps of a msgspec path: `$.models[1].type` is ("models", 1, "type"); `[...]` (a key) ends it."""
    steps: list[str | int] = []
    for name, index in re.findall(r"\.([A-Za-z_]+)|\[(\d+|\.\.\.)\]", path):
        if index == "...":
            break
        steps.append(name or int(index))
    return tuple(steps)


def _unknown(field: str) -> str:
    close = get_close_matches(field, _FIELDS, n=1)
    return f"There is no such field here; did you mean `{close[0]}`?" if close else "There is no such field here."


_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
    "decimal": "a decimal number",
    "datetime": "a time",
    "date": "a date",
}


def _plain_sentence(message: str, field: str) -> str:
    if field in _CHOICES and message.startswith("Invalid enum value"):
        return f"This is none of the known values: {', '.join(_CHOICES[field])}."
    if message.startswith("Invalid enum value") and field == "role":
        return "This is none of the known roles."
    if wrong := re.match(r"Expected `(.+)`, got `(.+)`", message):
        wanted, got = (
            " or ".join(dict.fromkeys(_TYPES.get(name, name) for name in part.split(" | ") if name != "null"))
            for part in wrong.groups()
        )
        hint = "; put it in quotes" if wanted == "text" and wrong.group(2) in ("int", "bool", "float") else ""
        return f"Expected {wanted}, found {got or 'nothing'}{hint}."
    return f"{message}." if not message.endswith(".") else message


def _decode_reference(kind: type, value: Any) -> Any:
    if kind is not Reference:
        raise NotImplementedError(f"no rule to read a {kind.__name__}")
    if not isinstance(value, str) or not re.match(Reference.PATTERN, value):
        raise ValueError("Write env:NAME, file:PATH or value:TEXT here; a bare text could be a secret in the wrong place")
    return Reference(value)


def _encode_reference(value: Any) -> Any:
    if not isinstance(value, Reference):
        raise NotImplementedError(f"no rule to write a {type(value).__name__}")
    return "value:supplied"


def _reference_schema(kind: type) -> dict[str, Any]:
    if kind is not Reference:
        raise NotImplementedError(f"no schema for {kind.__name__}")
    return {"type": "string", "pattern": Reference.PATTERN, "description": "env:NAME, file:PATH or value:TEXT"}


# --- What the entries mean together ---------------------------------------------------------------------------------


def _check_meaning(file: WorkspaceFile, problems: _Problems, allowed_origins: AllowedOrigins) -> None:
    teams = _check_names(problems, "teams", file.teams)
    issuers = _check_names(problems, "issuers", file.issuers)
    _check_names(problems, "accounts", file.accounts)
    users = _check_names(problems, "users", file.users)
    services = _check_names(problems, "service_accounts", file.service_accounts)
    for index, service in enumerate(file.service_accounts):
        if service.name in users:
            problems.add(("service_accounts", index, "name"), f"A user is called {service.name} already; principals share names.")
    if not is_handle(file.workspace.id):
        problems.add(("workspace", "id"), _HANDLE_SENTENCE)
    providers: dict[str, str] = {account.name: account.provider for account in file.accounts}
    subjects = {*_subjects("user", users), *_subjects("service_account", services), *_subjects("team", teams)}

    def check_defaults(path: _Path, defaults: dict[str, str]) -> None:
        for provider, account in defaults.items():
            if provider not in MODEL_NAMES:
                problems.add((*path, provider), f"There is no provider {provider}; there are: {', '.join(MODEL_NAMES)}.")
            elif providers.get(account) != provider:
                problems.add((*path, provider), f"There is no {provider} account called {account} in this file.")

    def check_known(path: _Path, name: str, known: set[str], what: str) -> None:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            problems.add(path, f"There is no {what} {name} in this file{hint}")

    def check_subject(path: _Path, subject: str) -> None:
        if subject.partition(":")[0] not in ("user", "service_account", "team"):
            problems.add(path, "Write user:<name>, service_account:<name> or team:<name>.")
        else:
            check_known(path, subject, subjects, "subject")

    check_defaults(("workspace", "defaults"), file.workspace.defaults)
    for index, team in enumerate(file.teams):
        check_defaults(("teams", index, "defaults"), team.defaults)
    _check_issuers(file, problems, teams, allowed_origins, check_known)
    identities: set[tuple[str | None, str | None]] = set()
    sections: tuple[tuple[str, tuple[UserEntry | ServiceAccountEntry, ...]], ...] = (
        ("users", file.users),
        ("service_accounts", file.service_accounts),
    )
    for section, principals in sections:
        for index, principal in enumerate(principals):
            for position, name in enumerate(principal.teams):
                check_known((section, index, "teams", position), name, teams, "team")
            if len(set(principal.teams)) != len(principal.teams):
                problems.add((section, index, "teams"), "A team is listed twice.")
    for index, user in enumerate(file.users):
        if (user.issuer is None) != (user.subject is None):
            problems.add(("users", index), "`issuer` and `subject` belong together: give both or neither.")
        elif user.issuer is not None:
            check_known(("users", index, "issuer"), user.issuer, issuers, "issuer")
            if (user.issuer, user.subject) in identities:
                problems.add(("users", index, "subject"), "Another user has this issuer and subject.")
            identities.add((user.issuer, user.subject))
        if user.email is not None and not re.fullmatch(r"[^@\s]+@[^@\s]+", user.email):
            problems.add(("users", index, "email"), "That is not an e-mail address.")
    for index, account in enumerate(file.accounts):
        _check_account(account, ("accounts", index), problems, allowed_origins, check_subject)
    _check_prices(file, problems, providers)


_HANDLE_SENTENCE = "Use 1 to 63 of a-z, 0-9 and inner hyphens: the name stands in paths, subjects and host labels."


def _subjects(kind: str, names: set[str]) -> set[str]:
    return {f"{kind}:{name}" for name in names}


def _check_names(problems: _Problems, section: str, entries: tuple[Any, ...]) -> set[str]:
    """Return the names of a section's entries after checking their form and that each occurs once."""
    names: set[str] = set()
    for index, entry in enumerate(entries):
        if not is_handle(entry.name):
            problems.add((section, index, "name"), _HANDLE_SENTENCE)
        if entry.name in names:
            problems.add((section, index, "name"), f"{entry.name} is defined twice.")
        names.add(entry.name)
    return names


def _check_issuers(
    file: WorkspaceFile, problems: _Problems, teams: set[str], allowed_origins: AllowedOrigins, check_known: Any
) -> None:
    pairs: set[tuple[str, str]] = set()
    for index, issuer in enumerate(file.issuers):
        path: _Path = ("issuers", index)
        if issuer.jwks is not None and issuer.jwks_uri is not None:
            problems.add((*path, "jwks_uri"), "Give `jwks` or `jwks_uri`, not both.")
        fetched = [("jwks_uri", issuer.jwks_uri)] if issuer.jwks_uri is not None else []
        if issuer.jwks is None and issuer.jwks_uri is None:
            fetched = [("issuer", issuer.issuer)]
        for field, url in fetched:
            if (sentence := url_problem(str(url), allowed_origins)) is not None:
                problems.add((*path, field), sentence)
        for audience in issuer.audiences:
            if (issuer.issuer, audience) in pairs:
                problems.add((*path, "audiences"), f"Another issuer of this file has {issuer.issuer} with audience {audience}.")
            pairs.add((issuer.issuer, audience))
        for group, team in issuer.group_teams.items():
            check_known((*path, "group_teams", group), team, teams, "team")
        if issuer.group_teams and issuer.groups_claim is None:
            problems.add((*path, "group_teams"), "Name the claim that carries the groups: `groups_claim: groups`.")
        if not _EXPIRY.match(issuer.expiry):
            problems.add((*path, "expiry"), "Write finish-session, grace:<seconds> or hard.")


def url_problem(url: str, allowed_origins: AllowedOrigins) -> str | None:
    """Return what is wrong with the address of a document to fetch (JWKS, discovery, export target), or None."""
    found = re.match(r"(https?://[^/?#]*)(/[^\s\x00-\x1f?#]*)?(\?[^\s\x00-\x1f#]*)?\Z", url)
    if found is None:
        return "That is not an http(s) address."
    return _origin_problem(found.group(1), allowed_origins)


def _origin_problem(origin: str, allowed_origins: AllowedOrigins) -> str | None:
    try:
        checked_origin(origin, (origin,) if allowed_origins is None else allowed_origins)
    except OriginRefused as refused:
        return str(refused)
    return None


def model_problem(provider: str, name: str, kind: ModelType) -> str | None:
    """Return why a provider cannot have a model of this id and type, or None."""
    types = MODEL_NAMES[provider]
    pattern = types.get(kind)
    if pattern is None:
        return f"{provider} has no {kind} models; it has: {', '.join(types)}."
    if pattern.match(name):
        return None
    actual = next((other for other, other_pattern in types.items() if other_pattern.match(name)), None)
    if actual is not None:
        return f"{name} is a {actual} model of {provider}."
    return f"{name} is no {kind} model of {provider}: use the provider's own id; Glottis has no aliases."


def _check_account(
    account: AccountEntry, path: _Path, problems: _Problems, allowed_origins: AllowedOrigins, check_subject: Any
) -> None:
    if (sentence := _origin_problem(account.origin, allowed_origins)) is not None:
        problems.add((*path, "origin"), sentence)
    seen: set[str] = set()
    for index, collaborator in enumerate(account.collaborators or ()):
        check_subject((*path, "collaborators", index, "subject"), collaborator.subject)
        if collaborator.subject in seen:
            problems.add((*path, "collaborators", index, "subject"), f"{collaborator.subject} is listed twice.")
        seen.add(collaborator.subject)
    names: set[str] = set()
    for index, model in enumerate(account.models or ()):
        if (sentence := model_problem(account.provider, model.name, model.type)) is not None:
            problems.add((*path, "models", index, "name"), sentence)
        if model.name in names:
            problems.add((*path, "models", index, "name"), f"{model.name} is registered twice in {account.name}.")
        names.add(model.name)
        for position, subject in enumerate(model.only or ()):
            check_subject((*path, "models", index, "only", position), subject)


def _check_prices(file: WorkspaceFile, problems: _Problems, providers: dict[str, str]) -> None:
    seen: set[tuple[str, str, str, str, int]] = set()
    for index, price in enumerate(file.prices):
        path: _Path = ("prices", index)
        if not price.price.is_finite() or price.price < 0 or len(price.price.as_tuple().digits) > 30:
            problems.add((*path, "price"), "A price is a decimal number that is not negative.")
        if not _CURRENCY.match(price.currency):
            problems.add((*path, "currency"), "Write the currency's three capital letters, for example USD.")
        if price.account is not None and providers.get(price.account) != price.provider:
            problems.add((*path, "account"), f"There is no {price.provider} account called {price.account} in this file.")
        try:
            start = effective_ms(price.effective)
        except (ValueError, OverflowError):
            problems.add((*path, "effective"), "Write a date such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z.")
            continue
        key = (price.provider, price.account or "", price.model, price.unit, start)
        if key in seen:
            problems.add(path, "Another entry prices the same account, model and unit from the same time.")
        seen.add(key)
