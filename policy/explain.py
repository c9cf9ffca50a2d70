"""Why a request would be admitted or refused, in every rule that took part.

The verdict is the data plane's own: the same scan, the same `admit` and `judge`, over a caller that shows no token. The
findings say what these looked at, for people to read. Used by `glottis explain` and by the control plane's API. Read next:
`policy.decide`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from contracts.snapshot import Account, Issuer, Model, PrincipalKind
from policy import resolve
from policy.access import ROLE_OPERATIONS, Access
from policy.decide import Admit, admit, judge
from policy.facts import Facts, RequestHead
from policy.providers import registry
from policy.providers.profile import Endpoint, Profile
from policy.refusal import Refusal, message_of
from policy.route import Caller
from policy.scan import scan_of
from policy.world import World

Effect: TypeAlias = Literal["allows", "refuses", "does not apply"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that was looked at. `rule` is stable; `text` is a sentence about the records that it met."""

    rule: Literal["principal", "grant", "account", "model", "choice", "operation", "voice"]
    effect: Effect
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict, and the findings in the order in which the rules are asked."""

    is_admitted: bool
    reason: str
    """`admitted`, or the refusal's reason"""
    message: str
    endpoint: str
    account: str
    """name; empty if none was reached"""
    model: str
    team: str
    """id of the team that the cost would go to"""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Whom and what to explain. subject: `user:<id>` or `service_account:<id>`; operation: an endpoint id of the profile."""

    workspace: str
    subject: str
    endpoint: str = "tts.websocket"
    model: str | None = None
    voice: str | None = None
    pin: str | None = None
    profile: str = "cartesia"


class Unanswerable(ValueError):
    """The question names something that does not exist; the text is a plain sentence for whoever asked."""


def explain(question: Question, world: World, now: float) -> Explanation:
    """Return the verdict on a question, with every rule that took part. Raises Unanswerable. now: Unix seconds."""
    profile = registry.PROFILES.get(question.profile)
    if profile is None:
        raise Unanswerable(f"There is no profile {question.profile}; there are {', '.join(sorted(registry.PROFILES))}.")
    endpoint = registry.endpoint_named(profile, question.endpoint)
    if endpoint is None:
        known = ", ".join(sorted({listed.id for listed in profile.endpoints}))
        raise Unanswerable(f"Profile {profile.name} has no endpoint {question.endpoint}; it has {known}.")
    caller, finding = _caller_of(question, world)
    findings = [finding]
    if caller is None:
        return _explanation(question, Refusal("principal_disabled"), findings)
    verdict = _verdict(question, profile, endpoint, caller, world, now)
    access = resolve.access_of(caller, world.index)
    findings += _grants(access, world)
    findings += _accounts(access, profile, question, world)
    if endpoint.model_key is not None or endpoint.takes_only_model:
        findings += _models(access, profile, endpoint, question, world)
    findings += _outcome(verdict, question, endpoint, access)
    return _explanation(question, verdict, findings)


def _caller_of(question: Question, world: World) -> tuple[Caller | None, Finding]:
    kind, _, principal_id = question.subject.partition(":")
    record = world.index.principals.get((question.workspace, principal_id))
    if record is None or record.kind != kind:
        raise Unanswerable(f"There is no {question.subject} in this workspace.")
    teams = ", ".join(_named(f"team:{team}", question.workspace, world).removeprefix("team:") for team in record.teams) or "none"
    if record.is_disabled:
        return None, Finding("principal", "refuses", f"{record.name} is disabled.")
    principal_kind: PrincipalKind = record.kind
    caller = Caller(
        workspace=question.workspace,
        principal=record.id,
        kind=principal_kind,
        name=record.name,
        teams=record.teams,
        issuer=Issuer(id="", workspace=question.workspace, issuer="", audiences=()),
        token_id="",
        parent_token_id=None,
        issued_at=0.0,
        expires_at=float("inf"),
        record=record,
    )
    return caller, Finding("principal", "allows", f"{record.name} is a {kind.replace('_', ' ')}; teams: {teams}.")


def _named(subject: str, workspace: str, world: World) -> str:
    """Return a subject with its name for its id, as people write it."""
    kind, _, identity = subject.partition(":")
    index = world.index
    record = index.teams.get((workspace, identity)) if kind == "team" else index.principals.get((workspace, identity))
    return subject if record is None else f"{kind}:{record.name}"


def _verdict(
    question: Question, profile: Profile, endpoint: Endpoint, caller: Caller, world: World, now: float
) -> Admit | Refusal:
    """Return what the data plane says: of the request, and where messages are judged, of one that speaks."""
    pin = f"/@{question.pin}" if question.pin is not None else ""
    path = "/" + "/".join("x" if part.startswith("{") else part for part in endpoint.path.strip("/").split("/"))
    head = RequestHead(
        endpoint.methods[0] if endpoint.methods else "GET",
        f"/{profile.mount.decode()}{pin}{path}".encode(),
        b"",
        [],
        endpoint.is_websocket,
    )
    scan = scan_of(head, {})
    if isinstance(scan, Refusal):
        return scan
    said = Facts(model=question.model, voice=question.voice, speaks=endpoint.text_key is not None)
    if endpoint.judged != "message":
        return admit(scan, caller, said, world)
    opened = admit(scan, caller, Facts(), world)
    if isinstance(opened, Refusal):
        return opened
    judged = judge(opened.route, caller, said, world, now)
    return judged if isinstance(judged, Refusal) else Admit(judged, said)


def _grants(access: Access, world: World) -> list[Finding]:
    findings = []
    for subject in sorted(access.subjects):
        for grant in world.index.grants.get((access.workspace, subject), ()):
            account = world.index.accounts[grant.account]
            operations = sorted(ROLE_OPERATIONS[grant.role].union(grant.operations))
            who = _named(subject, access.workspace, world)
            text = f"{who} is a {grant.role} of account {account.name}: {', '.join(operations)}."
            findings.append(Finding("grant", "does not apply" if account.is_disabled else "allows", text))
    return findings or [Finding("grant", "refuses", "No account is granted to this principal or any of its teams.")]


def _accounts(access: Access, profile: Profile, question: Question, world: World) -> list[Finding]:
    findings = []
    for account in sorted(world.index.accounts.values(), key=lambda account: account.name):
        if account.workspace != access.workspace:
            continue
        effect, text = _account(account, access, profile, question)
        findings.append(Finding("account", effect, f"Account {account.name} {text}."))
    return findings


def _account(account: Account, access: Access, profile: Profile, question: Question) -> tuple[Effect, str]:
    if account.provider not in profile.providers:
        return "does not apply", f"is of provider {account.provider}, which /{profile.mount.decode()}/ does not reach"
    if account.is_disabled:
        return "refuses", "is disabled"
    if account.id not in access.permits:
        return "refuses", "is not granted"
    if question.pin is not None and account.name != question.pin:
        return "does not apply", f"is granted, but the path pins @{question.pin}"
    return "allows", f"is granted, priority {account.priority}"


def _models(access: Access, profile: Profile, endpoint: Endpoint, question: Question, world: World) -> list[Finding]:
    name = question.model
    if name is None:
        return [Finding("model", "does not apply", "The question names no model.")]
    registered = world.index.models.get((access.workspace, name), [])
    usable = {id(candidate.model) for candidate in access.candidates(profile, name)}
    findings = [_model(model, id(model) in usable, endpoint, access, world) for model in registered]
    return findings or [Finding("model", "refuses", f"No account registers model {name}.")]


def _model(model: Model, is_usable: bool, endpoint: Endpoint, access: Access, world: World) -> Finding:
    where = f"Model {model.name} of account {world.index.accounts[model.account].name}"
    if endpoint.model_type not in (None, model.type):
        return Finding("model", "refuses", f"{where} is for {model.type}, not for {endpoint.model_type}.")
    if model.only is not None and access.subjects.isdisjoint(model.only):
        holders = ", ".join(_named(subject, access.workspace, world) for subject in model.only) or "nobody"
        return Finding("model", "refuses", f"{where} is narrowed to {holders}.")
    if not is_usable:
        return Finding("model", "refuses", f"{where} is in an account that cannot be used here.")
    narrowed = "inherited from the account" if model.only is None else "named in its narrowing"
    return Finding("model", "allows", f"{where} may be used: {narrowed}.")


def _outcome(verdict: Admit | Refusal, question: Question, endpoint: Endpoint, access: Access) -> list[Finding]:
    """Say what the verdict's last steps were: the choice of the account, the operation there, the voice."""
    if isinstance(verdict, Refusal):
        effect: Effect = "refuses"
        if verdict.reason in ("operation_not_granted", "cannot_mint", "save_not_granted"):
            return [Finding("operation", effect, message_of(verdict))]
        if verdict.reason == "voice_not_allowed":
            return [*_voice_lists(access), Finding("voice", effect, message_of(verdict))]
        return [Finding("choice", effect, message_of(verdict))]
    account = verdict.route.account
    if question.pin is not None:
        how = "the path pins it"
    elif verdict.route.model and endpoint.model_key is not None:
        how = f"of the granted accounts that register {verdict.route.model} it comes first by priority, then by name"
    elif len(access.permits) == 1:
        how = "it is the only one"
    else:
        how = "it is the default, or the only one of its provider"
    findings = [
        Finding("choice", "allows", f"Account {account.name}: {how}."),
        Finding("operation", "allows", f"Operation {endpoint.operation} is granted there."),
    ]
    if endpoint.voice_key is not None:
        takes_any = access.permits[account.id].takes_any_voice
        listed = "any voice is approved" if takes_any else f"{question.voice} is approved"
        findings.append(Finding("voice", "allows", f"At account {account.name} {listed}."))
    return findings


def _voice_lists(access: Access) -> list[Finding]:
    """Say who has a list of voices: the accounts that can be used, and the teams of whose grants one does not open all."""
    findings = []
    for permit in access.permits.values():
        account = permit.account
        if account.allowed_voices is not None:
            text = f"Account {account.name} approves of {', '.join(account.allowed_voices) or 'no voice'}."
            findings.append(Finding("voice", "does not apply", text))
        if permit.voices is not None:
            text = f"At account {account.name} the teams' lists open {', '.join(sorted(permit.voices)) or 'no voice'}."
            findings.append(Finding("voice", "does not apply", text))
    return findings


def _explanation(question: Question, verdict: Admit | Refusal, findings: list[Finding]) -> Explanation:
    if isinstance(verdict, Refusal):
        return Explanation(
            False, verdict.reason, message_of(verdict), question.endpoint, "", question.model or "", "", tuple(findings)
        )
    route = verdict.route
    message = f"Admitted at account {route.account.name}."
    return Explanation(
        True, "admitted", message, question.endpoint, route.account.name, route.model, route.attribution.team, tuple(findings)
    )
