"""The client commands against a running control plane: what a person types and what they see."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit.control_plane import RunningControlPlane

FILE = """\
version: 1
workspace: {id: acme, name: Acme}
teams:
  - name: voice
users:
  - {name: grace, teams: [voice]}
accounts:
  - name: kokoro-local
    provider: kokoro
    origin: http://127.0.0.1:8880
    credential: file:kokoro.key
    collaborators: [{subject: team:voice}]
    models: [{name: kokoro-82m, type: text-to-speech}]
"""


async def run(running: RunningControlPlane, *arguments: str, folder: Path) -> tuple[int, str, str]:
    """Run a command as a person would, in a folder; return status, standard output and standard error."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "GLOTTIS_CONTROL_PLANE_URL": running.url,
        "GLOTTIS_TOKEN": running.token,
        "NO_COLOR": "1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "glottis",
        *arguments,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_apply_says_what_it_changed_and_then_that_nothing_is_left(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE)
    status, out, err = await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    assert (status, err) == (0, "")
    assert "+ account kokoro-local" in out
    assert "Changed: 5 created, 1 updated, 0 deleted." in out
    status, out, err = await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    assert (status, out.splitlines()[0]) == (0, "Nothing to change: the workspace matches the file.")


async def test_diff_changes_nothing_and_tells_by_its_status(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE)
    status, out, _ = await run(control_plane, "apply", "-f", "workspace.yaml", "--diff", folder=tmp_path)
    assert status == 1
    assert "+ team voice" in out
    assert "kk_1" not in out
    async with control_plane.client() as client:
        assert (await client.get("/teams")).json()["items"] == []


async def test_a_dry_run_counts_what_would_change_and_changes_nothing(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE)
    status, out, err = await run(control_plane, "apply", "-f", "workspace.yaml", "--dry-run", folder=tmp_path)
    assert (status, err) == (0, "")
    assert out.splitlines()[-3:-1] == [
        "Would create 5, update 1 and delete 0; nothing is changed yet.",
        "Make it so: the same command without --diff and --dry-run.",
    ]
    async with control_plane.client() as client:
        assert (await client.get("/teams")).json()["items"] == []
        assert (await client.get("/accounts")).json()["items"] == []


async def test_a_diff_that_would_prune_shows_what_it_would_delete(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_text("version: 1\nworkspace: {id: acme, name: Acme}\nusers: [{name: ada, role: owner}]\n")
    await run(control_plane, "teams", "add", "voice", folder=tmp_path)
    status, out, _ = await run(control_plane, "apply", "-f", "workspace.yaml", "--diff", "--prune", folder=tmp_path)
    assert status == 1
    assert out.splitlines() == [
        "- team voice",
        "Would create 0, update 0 and delete 1; nothing is changed yet.",
        "Make it so: the same command without --diff and --dry-run, with --prune.",
    ]
    async with control_plane.client() as client:
        assert [team["name"] for team in (await client.get("/teams")).json()["items"]] == ["voice"]


async def test_an_origin_that_only_the_control_plane_refuses_is_told_by_line_and_field(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE.replace("127.0.0.1:8880", "10.0.0.7:8880"))
    status, out, err = await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "workspace.yaml:10: accounts[0].origin: "
        "Use https. An operator can list a plain http origin in GLOTTIS_ALLOWED_PRIVATE_ORIGINS.",
        "workspace.yaml has 1 mistake.",
    ]


async def test_a_token_for_a_model_that_is_not_there_is_refused_and_the_known_ones_are_named(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE)
    await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    status, out, err = await run(control_plane, "tokens", "mint", "--user", "ada", "--model", "nope", folder=tmp_path)
    assert (status, out) == (2, "")
    assert err.splitlines()[0] == "glottis: models: There is no model 'nope' in this workspace; there is kokoro-82m."


async def test_a_republication_is_waited_for(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    before = control_plane.app.state.publisher.revision
    status, out, err = await run(control_plane, "republish", "--wait", folder=tmp_path)
    assert (status, out) == (0, "")
    assert re.fullmatch(r"Revision \d+ is published; 0 pods run it\.\n", err)
    assert control_plane.app.state.publisher.revision > before


async def test_a_wrong_file_is_told_by_line_and_field(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_text(FILE.replace("team:voice", "team:vice"))
    status, out, err = await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "workspace.yaml:12: accounts[0].collaborators[0].subject: "
        "There is no subject team:vice in this file; did you mean team:voice?",
        "workspace.yaml has 1 mistake.",
    ]


async def test_a_missing_secret_is_told_before_anything_is_sent(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_text(FILE)
    status, _, err = await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    assert status == 1
    assert "accounts.kokoro-local.credential.active: kokoro.key cannot be read: No such file or directory." in err


async def test_a_token_is_minted_listed_and_revoked(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    status, out, err = await run(control_plane, "tokens", "mint", "--user", "ada", "--expires-in", "1h", folder=tmp_path)
    assert status == 0, err
    assert out.count(".") == 2
    status, listed, _ = await run(control_plane, "tokens", "list", "--user", "ada", "--json", folder=tmp_path)
    minted = next(token for token in json.loads(listed) if token["audience"] == "glottis")
    assert out.strip() not in listed
    status, _, err = await run(control_plane, "tokens", "revoke", minted["id"], folder=tmp_path)
    assert (status, err) == (0, f"Revoked {minted['id']}.\n")


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


async def test_a_token_carries_the_annotations_that_it_was_minted_with(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    annotated = ("--metadata", "project=ivr", "--metadata", "note=a=b")
    status, out, err = await run(control_plane, "tokens", "mint", "--user", "ada", *annotated, folder=tmp_path)
    assert status == 0, err
    assert claims_of(out.strip())["glottis_metadata"] == {"project": "ivr", "note": "a=b"}
    status, listed, _ = await run(control_plane, "tokens", "list", "--user", "ada", "--json", folder=tmp_path)
    minted = next(token for token in json.loads(listed) if token["audience"] == "glottis")
    assert minted["metadata"] == {"project": "ivr", "note": "a=b"}
    status, out, err = await run(control_plane, "tokens", "rotate", minted["id"], folder=tmp_path)
    assert status == 0, err
    assert claims_of(out.strip())["glottis_metadata"] == {"project": "ivr", "note": "a=b"}
    status, _, err = await run(control_plane, "tokens", "mint", "--user", "ada", "--metadata", "project", folder=tmp_path)
    assert (status, "'project' is not KEY=VALUE." in err) == (2, True)


async def test_a_single_use_token_for_a_web_page_is_minted_and_shown_as_such(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    status, out, err = await run(
        control_plane, "tokens", "mint", "--user", "ada", "--browser", "--single-use", "--json", folder=tmp_path
    )
    assert status == 0, err
    minted = json.loads(out)
    assert claims_of(minted["token"])["is_single_use"] is True
    status, listed, _ = await run(control_plane, "tokens", "list", "--user", "ada", "--json", folder=tmp_path)
    assert [token["is_single_use"] for token in json.loads(listed) if token["kind"] == "browser"] == [True]


async def test_a_refusal_is_two_sentences_and_status_2(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    status, out, err = await run(control_plane, "tokens", "mint", "--user", "nobody", folder=tmp_path)
    assert (status, out) == (2, "")
    assert err.splitlines()[0] == "glottis: There is no user 'nobody' in this workspace."


async def test_an_account_is_managed_from_the_command_line(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE)
    await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    (tmp_path / "new.key").write_text("kk_2\n")
    asked: list[tuple[tuple[str, ...], str]] = [
        (
            ("accounts", "rotate-credential", "kokoro-local", "--file", "new.key"),
            "kokoro-local uses its new credential: active v2, retiring v1.\n",
        ),
        (("accounts", "drop-retiring", "kokoro-local"), "kokoro-local has one credential.\n"),
        (("collaborators", "add", "kokoro-local", "user:grace", "--role", "manager"), "user:grace may use kokoro-local.\n"),
        (("models", "remove", "kokoro-local", "kokoro-82m"), "kokoro-local no longer has kokoro-82m.\n"),
        (("models", "list", "kokoro-local"), "kokoro-local has no models.\n"),
        (("models", "add", "kokoro-local", "kokoro-82m", "--type", "text-to-speech"), "kokoro-local has kokoro-82m.\n"),
        (
            ("models", "list", "kokoro-local"),
            "NAME        TYPE            PRIORITY  FOR\nkokoro-82m  text-to-speech  –         collaborators\n",
        ),
        (("teams", "members", "voice"), "NAME   KIND  ROLE    DISABLED\ngrace  user  member  no\n"),
    ]
    for arguments, expected in asked:
        status, out, err = await run(control_plane, *arguments, folder=tmp_path)
        assert (status, out) == (0, expected), (arguments, err)


async def test_explain_prints_the_rules_and_tells_by_its_status(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE)
    await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    status, out, _ = await run(control_plane, "explain", "--as", "user:grace", "--model", "kokoro-82m", folder=tmp_path)
    assert status == 0
    assert out.splitlines()[-1] == "Admitted: Admitted at account kokoro-local."
    status, out, _ = await run(control_plane, "explain", "--as", "user:ada", "--model", "kokoro-82m", folder=tmp_path)
    assert status == 1
    assert out.splitlines()[-1].startswith("Refused (account_not_granted): ")


async def test_the_audit_log_is_shown_and_verified(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    await run(control_plane, "teams", "add", "voice", folder=tmp_path)
    status, out, _ = await run(control_plane, "audit", "--kind", "team", folder=tmp_path)
    assert status == 0
    assert "ada         create  team  voice" in out
    status, out, _ = await run(control_plane, "audit", "--verify", folder=tmp_path)
    assert status == 0
    assert " entries is whole; its head is " in out


async def test_the_audit_log_is_exported_whole(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    exported = tmp_path / "audit.jsonl"
    await run(control_plane, "teams", "add", "voice", folder=tmp_path)
    status, out, _ = await run(control_plane, "audit", "--export", "audit.jsonl", folder=tmp_path)
    assert (status, out) == (0, "Wrote audit.jsonl.\n")
    lines = exported.read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert json.loads(lines[-1])["target_name"] == "voice"
    assert not exported.with_name("audit.jsonl.part").exists()


async def test_an_export_is_validated_and_applies_without_a_change(control_plane: RunningControlPlane, tmp_path: Path) -> None:
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(FILE)
    await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path)
    assert (await run(control_plane, "export", "-o", "out.yaml", folder=tmp_path))[0] == 0
    status, out, _ = await run(control_plane, "validate", "-f", "out.yaml", folder=tmp_path)
    assert (status, out) == (0, "out.yaml is valid: 1 accounts, 1 teams, 2 principals.\n")
    status, out, _ = await run(control_plane, "apply", "-f", "out.yaml", "--prune", "--diff", folder=tmp_path)
    expected = "Nothing to change: the workspace matches the file, and holds nothing that the file does not name.\n"
    assert (status, out) == (0, expected)


EXPLAINED = """\
version: 1
workspace: {id: acme, name: Acme}
teams:
  - {name: voice, allowed_voices: [ann, ben]}
  - {name: support}
users:
  - {name: grace, teams: [support]}
service_accounts:
  - {name: phone-agent, teams: [voice]}
accounts:
  - name: cartesia-eu
    provider: cartesia
    origin: https://api.cartesia.ai
    credential: file:kokoro.key
    collaborators: [{subject: team:voice}]
    models: [{name: sonic-3, type: text-to-speech}]
  - name: kokoro-local
    provider: kokoro
    origin: http://127.0.0.1:8880
    credential: file:kokoro.key
    collaborators: [{subject: team:support}]
    models: [{name: kokoro-82m, type: text-to-speech}]
"""


async def test_the_explanations_of_the_readme_are_what_the_command_prints(
    control_plane: RunningControlPlane, tmp_path: Path
) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    (tmp_path / "kokoro.key").write_text("kk_1\n")
    (tmp_path / "workspace.yaml").write_text(EXPLAINED)
    assert (await run(control_plane, "apply", "-f", "workspace.yaml", folder=tmp_path))[0] == 0
    examples = re.findall(r"^\$ glottis (explain .*)\n((?:[^\n`]+\n)+)", readme, re.MULTILINE)

    printed = [(await run(control_plane, *command.split(), folder=tmp_path))[1] for command, _ in examples]

    assert printed == [expected for _, expected in examples]
    assert len(examples) == 3
