"""Why a principal may or may not do something: the data plane's own decision over this workspace's records.

The records come from the same reader that the publisher uses, so what is explained is what pods decide on; a change that
is committed and not yet published is already in it. Read next: `policy.explain`.
"""

from sqlalchemy.ext.asyncio import AsyncConnection

from contracts.snapshot import Snapshot
from control_plane.access import service
from control_plane.kit.problems import Problem
from control_plane.publish import reader
from policy.explain import Explanation, Question, Unanswerable, explain
from policy.index import index_of
from policy.world import World


async def explained(connection: AsyncConnection, question: Question, subject: str, public_url: str, now: float) -> Explanation:
    """Return the explanation. question: its subject is not yet known; subject: `user:<id or name>` or `service_account:…`.

    Raises Problem not_found for a subject that is not there, invalid_request for what cannot be asked.
    """
    resolved = (await service.resolved_subjects(connection, [subject]))[0]
    if resolved.principal_id is None:
        raise Problem("invalid_request", "A team calls nobody; ask about one of its members.")
    # What takes part in a decision about one principal; a large workspace's other grants would only cost time.
    wanted: dict[str, list[str] | None] = {
        "principals": [resolved.principal_id],
        "teams": None,
        "accounts": None,
        "models": None,
        "grants": await service.grant_ids_of(connection, resolved.principal_id),
    }
    records = {kind: tuple(await reader.records_of(connection, kind, ids)) for kind, ids in wanted.items()}
    workspaces, issuers = await reader.workspace_records(connection, None, public_url)
    snapshot = Snapshot(revision=0, created_at_ms=0, workspaces=tuple(workspaces), issuers=tuple(issuers), **records)
    asked = Question(
        workspace=question.workspace,
        subject=resolved.text,
        endpoint=question.endpoint,
        model=question.model,
        voice=question.voice,
        pin=question.pin,
        profile=question.profile,
    )
    try:
        return explain(asked, World(index_of(snapshot)), now)
    except Unanswerable as unanswerable:
        # The text is written for whoever asked, and names only what the question names.
        raise Problem("invalid_request", str(unanswerable)) from unanswerable
