"""What of a workspace is asked for with every exchange, out of the configuration that is in force then.

Read next: `gateway.telemetry.recorder`, which asks.
"""

from contracts.secret import Secret
from gateway.state.credentials import Credentials
from gateway.state.snapshot import SnapshotStore


class WorkspaceSettings:
    """The settings of the workspaces in a store."""

    def __init__(self, store: SnapshotStore, credentials: Credentials) -> None:
        self._store = store
        self._credentials = credentials

    def transcript_key(self, workspace_id: str) -> Secret | None:
        """Return the key of the workspace's transcript hashes; None if it has none, or is gone."""
        workspace = self._store.world.index.workspaces.get(workspace_id)
        return None if workspace is None else self._credentials.transcript_key(workspace)

    def span_sampling(self, workspace_id: str) -> float:
        """Return the share of its exchanges whose spans are kept, 0 to 1."""
        workspace = self._store.world.index.workspaces.get(workspace_id)
        return 1.0 if workspace is None else workspace.span_sampling
