"""Which account, and which registered model, a request goes to.

The rule of the design: a pin, else the model, else the default, else the only one, else the caller is asked to say. Never a
guess, and the same answer for what is not granted and for what does not exist. The token's own narrowing is applied here.
Read next: `policy.authorize`, which asks what may be done there.
"""

from policy.access import Access, Candidate, Permit
from policy.index import Index
from policy.providers.profile import Endpoint, Profile
from policy.refusal import Refusal
from policy.route import Caller


def access_of(caller: Caller, index: Index) -> Access:
    """Return what the caller's principal may use."""
    return index.access_of(caller.workspace, f"{caller.kind}:{caller.principal}", caller.teams)


def by_model(
    caller: Caller, access: Access, profile: Profile, endpoint: Endpoint, pin: str | None, model: str, stay: str | None = None
) -> Candidate | Refusal:
    """Return the model's registration to use. stay: id of the account to keep, if it still serves the model."""
    if caller.models is not None and model not in caller.models:
        return Refusal("model_not_granted", model)
    first = None
    for candidate in access.candidates(profile, model):
        account = candidate.permit.account
        if endpoint.model_type is not None and candidate.model.type != endpoint.model_type:
            continue
        if pin is not None and account.name != pin:
            continue
        if caller.accounts is not None and account.id not in caller.accounts:
            continue
        if stay is None or account.id == stay:
            return candidate
        first = first or candidate
    if first is not None:
        return first
    if pin is not None:
        pinned = without_model(caller, access, profile, pin)
        if isinstance(pinned, Refusal):
            return pinned
    return Refusal("model_not_granted", model)


def without_model(caller: Caller, access: Access, profile: Profile, pin: str | None) -> Permit | Refusal:
    """Return the account to use where no model is named."""
    usable = access.accounts(profile)
    if caller.accounts is not None:
        usable = tuple(permit for permit in usable if permit.account.id in caller.accounts)
    if pin is not None:
        for permit in usable:
            if permit.account.name == pin:
                return permit
        return Refusal("account_not_granted", f"@{pin}")
    if not usable:
        return Refusal("account_not_granted")
    if len(usable) == 1:
        return usable[0]
    default = _default(caller, access, profile, usable)
    if default is not None:
        return default
    # The profile's own provider comes first: a Kokoro account beside the only Cartesia account makes nothing ambiguous.
    provider = usable[0].account.provider
    alike = [permit for permit in usable if permit.account.provider == provider]
    if len(alike) == 1:
        return alike[0]
    return Refusal("account_ambiguous", pins(profile, alike))


def _default(caller: Caller, access: Access, profile: Profile, usable: tuple[Permit, ...]) -> Permit | None:
    """Return the default that the caller's first team with one, else its workspace, sets; None if none of them is usable."""
    index = access.index
    teams = caller.teams
    if caller.cost_team in teams:
        teams = (caller.cost_team, *teams)
    wanted = []
    for team_id in teams:
        team = index.teams.get((caller.workspace, team_id))
        if team is not None and profile.name in team.default_accounts:
            wanted.append(team.default_accounts[profile.name])
    workspace = index.workspaces.get(caller.workspace)
    if workspace is not None and profile.name in workspace.default_accounts:
        wanted.append(workspace.default_accounts[profile.name])
    for account_id in wanted:
        for permit in usable:
            if permit.account.id == account_id:
                return permit
    return None


def accounts_with_models(caller: Caller, access: Access, profile: Profile, endpoint: Endpoint, pin: str | None) -> list[Permit]:
    """Return the accounts that some model of the endpoint's type leads to. Where it is one, a form can be sent on before
    its model field was read."""
    return [
        permit
        for permit in access.accounts(profile)
        if (pin is None or permit.account.name == pin)
        and (caller.accounts is None or permit.account.id in caller.accounts)
        and _usable_models(caller, access, endpoint, permit)
    ]


def only_model(caller: Caller, access: Access, endpoint: Endpoint, permit: Permit) -> str | Refusal:
    """Return the account's only model that the caller may use on the endpoint."""
    names = sorted(_usable_models(caller, access, endpoint, permit))
    if len(names) == 1:
        return names[0]
    return Refusal("model_missing", ", ".join(names)) if names else Refusal("model_not_granted")


def _usable_models(caller: Caller, access: Access, endpoint: Endpoint, permit: Permit) -> set[str]:
    return {
        model.name
        for model in access.models(permit)
        if endpoint.model_type in (None, model.type) and (caller.models is None or model.name in caller.models)
    }


def pins(profile: Profile, permits: list[Permit]) -> str:
    """Return the pins that would settle the choice, as a caller writes them."""
    return ", ".join(f"/{profile.mount.decode()}/@{permit.account.name}/" for permit in permits)
