"""What exchanges ask of their workspace."""

import time

from contracts.secret import Secret
from contracts.snapshot import Snapshot, Workspace
from gateway.state.credentials import Credentials
from gateway.state.snapshot import SnapshotStore
from gateway.state.workspace_settings import WorkspaceSettings
from policy.index import index_of


def test_a_workspace_has_the_settings_of_the_configuration_in_force() -> None:
    store = SnapshotStore(60.0, time.time)
    settings = WorkspaceSettings(store, Credentials.given({}, Secret(b"k" * 16)))
    before = (settings.transcript_key("w1"), settings.span_sampling("w1"))

    workspace = Workspace(id="w1", name="Voice", span_sampling=0.25)
    store.swap(index_of(Snapshot(revision=1, created_at_ms=1, workspaces=(workspace,))))

    assert before == (None, 1.0)
    assert (settings.transcript_key("w1"), settings.span_sampling("w1")) == (Secret(b"k" * 16), 0.25)
    assert (settings.transcript_key("w2"), settings.span_sampling("w2")) == (None, 1.0)
