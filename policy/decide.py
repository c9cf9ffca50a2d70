"""The one entry of the policy core: a request in, one of four answers out.

`decide` is total: any bytes give `Admit`, `NeedFacts`, `NeedKeys` or `Refusal`; it never raises and never waits. The edge
calls it with the head alone, brings what it asks for (the judged facts, or an issuer's keys) and calls it again.
`judge_message` asks the same questions for one message on an open socket. Read next: the steps in their order:
`scan` (describe, match), `authenticate`, `peek` and `form` (facts), `resolve` and `authorize`, `rewrite`.
"""

from dataclasses import replace
from typing import TypeAlias

import msgspec

from contracts.events import Attribution
from policy import authorize, resolve
from policy.access import Permit
from policy.authenticate import authenticate, still
from policy.facts import Facts, FactsPlace, RequestHead
from policy.form import form_boundary
from policy.providers.profile import Endpoint
from policy.providers.registry import PROFILES
from policy.refusal import Refusal
from policy.route import Caller, NeedKeys, Route
from policy.scan import Scan, scan_of
from policy.world import World

__all__ = ["Admit", "Caller", "Decision", "NeedFacts", "NeedKeys", "Route", "World", "decide", "judge_message"]


class Admit(msgspec.Struct, frozen=True):
    """Forward it, on this route. A session that is judged by message carries the facts that stood in its head, if any."""

    route: Route
    facts: Facts


class NeedFacts(msgspec.Struct, frozen=True):
    """Read the judged facts first: from the whole JSON body, or from a form field, then decide again."""

    place: FactsPlace
    endpoint: Endpoint
    route: Route | None = None
    """a form: where it goes whatever its model, so that it may be streamed there meanwhile, its end withheld. None: the
    model decides between accounts (or a JSON body is held anyway)"""
    pins: str = ""
    """a form whose model decides: the pins that would settle it, for the refusal `form_order`"""


Decision: TypeAlias = Admit | NeedFacts | NeedKeys | Refusal

_NO_FACTS = Facts()


def decide(head: RequestHead, facts: Facts | None, world: World, now: float) -> Decision:
    """Return what becomes of a request. facts: None until they were asked for and read. now: Unix seconds."""
    scan = head.scan
    if scan is None:
        scanned = scan_of(head, world.root_mounts)
        if isinstance(scanned, Refusal):
            return scanned
        scan = head.scan = scanned
    caller = authenticate(scan, world, now)
    if not isinstance(caller, Caller):
        return caller
    refused = authorize.origin(caller, scan.origin)
    if refused is not None:
        return refused
    reason = world.revocations.hits(caller, now)
    if reason is not None:
        return Refusal(reason)
    endpoint = scan.match.endpoint
    if endpoint.judged == "json_body" or endpoint.judged == "form_field":
        if facts is None:
            return _need_facts(scan, caller, world)
    elif facts is None:
        facts = scan.facts
    return admit(scan, caller, facts, world)


def _need_facts(scan: Scan, caller: Caller, world: World) -> NeedFacts | Admit | Refusal:
    """Return which facts are needed; refuses before a body is read what can be refused without it."""
    endpoint, profile = scan.match.endpoint, scan.match.profile
    if scan.has_content_encoding:
        return Refusal("content_encoding_unsupported")
    if not _is_readable(scan, endpoint):
        return Refusal("content_type_unsupported")
    access = resolve.access_of(caller, world.index)
    if endpoint.model_key is None and not endpoint.takes_only_model:
        permit = resolve.without_model(caller, access, profile, scan.match.pin)
        if isinstance(permit, Refusal):
            return permit
        if permit.takes_any_voice:
            return admit(scan, caller, _NO_FACTS, world)
        route = _route(scan, caller, permit, "", world)
    else:
        # At some account of the profile the operation must be granted; at which one, the model tells.
        usable = access.accounts(profile)
        if scan.match.pin is not None:
            usable = tuple(permit for permit in usable if permit.account.name == scan.match.pin)
        if not usable:
            return Refusal("account_not_granted", f"@{scan.match.pin}" if scan.match.pin is not None else "")
        for permit in usable:
            if authorize.operation(caller, permit, endpoint) is None:
                break
        else:
            return Refusal("operation_not_granted", endpoint.operation)
        if endpoint.judged == "json_body":
            return NeedFacts("json_body", endpoint)
        permits = resolve.accounts_with_models(caller, access, profile, endpoint, scan.match.pin)
        if not permits:
            return Refusal("model_not_granted")
        if len(permits) > 1:
            return NeedFacts("form_field", endpoint, None, resolve.pins(profile, permits))
        route = _route(scan, caller, permits[0], "", world)
    if isinstance(route, Refusal):
        return route
    return NeedFacts("form_field", endpoint, route)


def _is_readable(scan: Scan, endpoint: Endpoint) -> bool:
    """Tell whether the body's type is the one that this endpoint's facts are read from."""
    if scan.content_types > 1:
        return False
    if endpoint.judged == "form_field":
        return form_boundary(scan.content_type) is not None
    content_type = scan.content_type
    if content_type is None or content_type == b"application/json":
        return True
    kind, _, parameters = content_type.lower().partition(b";")
    if kind.strip() != b"application/json":
        return False
    return parameters.replace(b'"', b"").strip() in (b"", b"charset=utf-8")


def admit(scan: Scan, caller: Caller, facts: Facts, world: World) -> Admit | Refusal:
    """Return the route of a request whose caller and facts are known: the part of `decide` that can be explained."""
    match = scan.match
    endpoint, profile = match.endpoint, match.profile
    access = resolve.access_of(caller, world.index)
    model = facts.model
    if model is None and scan.facts.model is not None:
        model = scan.facts.model  # named by a header, beside a body that has no place for it
    if endpoint.model_key is None and not endpoint.takes_only_model:
        model = None
    if model is not None:
        candidate = resolve.by_model(caller, access, profile, endpoint, match.pin, model)
        if isinstance(candidate, Refusal):
            return candidate
        permit = candidate.permit
    else:
        if endpoint.model_key is not None and endpoint.judged != "message":
            return Refusal("model_missing")
        if endpoint.is_answered_here and match.pin is None:
            found = next(iter(access.accounts(profile)), None) or Refusal("account_not_granted")
        else:
            found = resolve.without_model(caller, access, profile, match.pin)
        if isinstance(found, Refusal):
            return found
        permit = found
        if endpoint.takes_only_model:
            only = resolve.only_model(caller, access, endpoint, permit)
            if isinstance(only, Refusal):
                return only
            model = only
    route = _route(scan, caller, permit, model or "", world)
    if isinstance(route, Refusal):
        return route
    if endpoint.judged != "message" and endpoint.voice_key is not None:
        refused = authorize.facts(caller, permit, facts)
        if refused is not None:
            return refused
    return Admit(route, facts)


def _route(scan: Scan, caller: Caller, permit: Permit, model: str, world: World) -> Route | Refusal:
    """Return the route to an account that was resolved, if the operation is granted there."""
    match = scan.match
    refused = authorize.operation(caller, permit, match.endpoint)
    if refused is not None:
        return refused
    account = permit.account
    return Route(
        caller,
        match.endpoint,
        account,
        model,
        _attribution(caller, match.endpoint, permit, model, world),
        scan.target,
        scan.traced_block if account.forwards_trace_headers else scan.header_block,
        scan.traced_framing_at if account.forwards_trace_headers else scan.framing_at,
        match.pin,
        scan.subprotocol,
        _metadata(scan, caller),
    )


def _metadata(scan: Scan, caller: Caller) -> tuple[tuple[str, str], ...]:
    """Return the annotations of the request and of its token; where both name one, the token's holds."""
    if not caller.metadata or not scan.metadata:
        return caller.metadata or scan.metadata
    return tuple((dict(scan.metadata) | dict(caller.metadata)).items())


def _attribution(caller: Caller, endpoint: Endpoint, permit: Permit, model: str, world: World) -> Attribution:
    """Return who and what an exchange is counted for; cost goes to the token's team, else the granting, else the first."""
    teams = caller.teams
    own = caller.cost_team if caller.cost_team in teams else None
    team = own or permit.team or (teams[0] if teams else "")
    record = world.index.teams.get((caller.workspace, team)) if team else None
    account = permit.account
    return Attribution(
        workspace=caller.workspace,
        principal=caller.principal,
        principal_kind=caller.kind,
        principal_name=caller.name,
        team=team,
        team_name=record.name if record is not None else "",
        token=caller.token_id,
        account=account.id,
        account_name=account.name,
        provider=account.provider,
        model=model,
        operation=endpoint.operation,
        endpoint=endpoint.id,
    )


def without_key(need: NeedKeys, world: World) -> Refusal:
    """Return the refusal of a token whose key is not known even after its issuer was asked anew."""
    return Refusal("key_unknown" if world.keys.has_keys(need.issuer.id) else "keys_unavailable")


def judge_message(route: Route, facts: Facts, world: World, now: float) -> Route | Refusal:
    """Return the route of one message on an open session, or why it is refused. now: Unix seconds.

    Asks everything that may have changed since the handshake: expiry, revocation, principal, grant, model, voice. With
    `Facts()` it judges the session itself again. A message without a model keeps the route's. Once the route has a model,
    its account is kept as long as it serves what is asked; the answer's account may still be another one, which the session
    treats as its rule says. The same route object comes back if nothing differs.
    """
    caller = still(route.caller, world.index, now)
    if not isinstance(caller, Caller):
        return caller
    return judge(route, caller, facts, world, now)


def judge(route: Route, caller: Caller, facts: Facts, world: World, now: float) -> Route | Refusal:
    """Return the route of a message whose caller is known: the part of `judge_message` that can be explained."""
    reason = world.revocations.hits(caller, now)
    if reason is not None:
        return Refusal(reason)
    endpoint = route.endpoint
    profile = PROFILES[endpoint.provider]
    access = resolve.access_of(caller, world.index)
    # Only a message that speaks is judged by the model that it names: SDKs close a context with another one.
    model = (facts.model if facts.speaks else None) or route.model
    if model and (endpoint.model_key is not None or endpoint.takes_only_model):
        stay = route.account.id if route.model else None
        candidate = resolve.by_model(caller, access, profile, endpoint, route.pin, model, stay)
        if isinstance(candidate, Refusal):
            return candidate
        permit = candidate.permit
    else:
        if facts.speaks and endpoint.model_key is not None:
            return Refusal("model_missing")
        held = access.permits.get(route.account.id)
        if held is None or (caller.accounts is not None and route.account.id not in caller.accounts):
            return Refusal("account_not_granted")
        permit = held
    account = permit.account
    refused = authorize.operation(caller, permit, endpoint)
    if refused is None and facts.speaks:
        refused = authorize.facts(caller, permit, facts)
    if refused is not None:
        return refused
    if account is route.account and model == route.model and caller is route.caller:
        return route
    return replace(
        route,
        caller=caller,
        account=account,
        model=model,
        attribution=_attribution(caller, endpoint, permit, model, world),
    )
