"""The REST API's common manners: who may do what, versions, repeats, pages, problems, other workspaces."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import asyncpg
import httpx
import pytest

from tests.kit.control_plane import RunningControlPlane, second_workspace


async def made(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    """Make a resource and return its JSON."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def token_of(running: RunningControlPlane, principal: str, **narrowing: Any) -> str:
    """Return an API token for a principal."""
    async with running.client() as client:
        minted = await made(client, "/tokens", {"principal": principal, "audience": "glottis-api", **narrowing})
    token: str = minted["token"]
    return token


# --- Who may do what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, "Bearer", "Basic YTpi", "Bearer not.a.token", "Bearer " + "x" * 5000])
async def test_without_a_good_token_there_is_401_and_nothing_else(control_plane: RunningControlPlane, header: str | None) -> None:
    async with control_plane.client("") as client:
        answer = await client.get("/teams", headers={} if header is None else {"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["reason"] == "unauthenticated"


async def test_a_gateway_token_does_not_open_the_api(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        token = (await made(client, "/tokens", {"principal": "user:ada"}))["token"]
    async with control_plane.client(token) as client:
        assert (await client.get("/teams")).status_code == 401


async def test_a_revoked_api_token_is_refused_at_once(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        minted = await made(client, "/tokens", {"principal": "user:ada", "audience": "glottis-api"})
        async with control_plane.client(minted["token"]) as other:
            assert (await other.get("/teams")).status_code == 200
            await client.delete(f"/tokens/{minted['id']}")
            assert (await other.get("/teams")).status_code == 401


async def test_members_read_but_change_nothing(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await made(client, "/users", {"name": "grace"})
    async with control_plane.client(await token_of(control_plane, "user:grace")) as client:
        assert (await client.get("/teams")).status_code == 200
        answer = await client.post("/teams", json={"name": "voice"})
        assert (answer.status_code, answer.json()["reason"]) == (403, "forbidden")
        assert (await client.get("/audit")).status_code == 403


async def test_a_member_mints_tokens_for_itself_alone(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await made(client, "/users", {"name": "grace"})
    async with control_plane.client(await token_of(control_plane, "user:grace")) as client:
        assert (await client.post("/tokens", json={"principal": "user:grace"})).status_code == 201
        assert (await client.post("/tokens", json={"principal": "user:ada"})).status_code == 403


async def test_a_manager_edits_its_own_account_and_sees_no_other(control_plane: RunningControlPlane) -> None:
    account = {"name": "mine", "provider": "cartesia", "origin": "https://api.cartesia.ai"}
    async with control_plane.client() as client:
        await made(client, "/users", {"name": "grace"})
        await made(client, "/teams", {"name": "voice"})
        await made(client, "/accounts", account)
        await made(client, "/accounts", {**account, "name": "other"})
        await made(client, "/accounts/mine/collaborators", {"subject": "user:grace", "role": "manager"})
    async with control_plane.client(await token_of(control_plane, "user:grace")) as client:
        assert [one["name"] for one in (await client.get("/accounts")).json()["items"]] == ["mine"]
        assert (await client.post("/accounts/mine/collaborators", json={"subject": "team:voice"})).status_code == 201
        assert (await client.patch("/accounts/mine", json={"region": "eu"}, headers={"If-Match": "*"})).status_code == 200
        assert (await client.get("/accounts/other")).status_code == 404
        assert (await client.post("/accounts/other/collaborators", json={"subject": "team:voice"})).status_code == 404
        assert (await client.delete("/accounts/mine")).status_code == 403


async def test_an_admin_makes_no_owner_and_no_token_for_one(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await made(client, "/users", {"name": "grace", "role": "admin"})
    async with control_plane.client(await token_of(control_plane, "user:grace")) as client:
        assert (await client.post("/users", json={"name": "mallory", "role": "owner"})).status_code == 403
        answer = await client.patch("/users/grace", json={"role": "owner"}, headers={"If-Match": "*"})
        assert answer.status_code == 403
        answer = await client.post("/tokens", json={"principal": "user:ada", "audience": "glottis-api"})
        assert answer.status_code == 403


async def test_a_token_that_may_only_read_changes_nothing(control_plane: RunningControlPlane) -> None:
    async with control_plane.client(await token_of(control_plane, "user:ada", scopes=["read"])) as client:
        assert (await client.get("/teams")).status_code == 200
        answer = await client.post("/teams", json={"name": "voice"})
        assert (answer.status_code, answer.json()["detail"]) == (403, "This token lacks the scope write.")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"metadata": {str(number): "" for number in range(33)}}, "metadata"),
        ({"metadata": {"": "ivr"}}, "metadata"),
        ({"metadata": {"k" * 65: "ivr"}}, "metadata"),
        ({"metadata": {"project": "x" * 129}}, "metadata"),
        ({"metadata": {"project": "a\u0000"}}, "metadata"),
        ({"metadata": {"project": 7}}, "metadata"),
        ({"metadata": {str(number): "é" * 128 for number in range(32)}}, "metadata"),
        ({"metadata": {"project": "ivr"}, "audience": "glottis-api"}, "audience"),
    ],
)
async def test_annotations_that_a_gateway_would_not_take_are_not_minted(
    control_plane: RunningControlPlane, asked: dict[str, Any], field: str
) -> None:
    async with control_plane.client() as client:
        answer = await client.post("/tokens", json={"principal": "user:ada", **asked})
        assert (answer.status_code, answer.json()["errors"][0]["field"].partition(".")[0]) == (422, field)
        assert [token["audience"] for token in (await client.get("/tokens")).json()["items"]] == ["glottis-api"]


async def test_the_last_owner_stays_one(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        answer = await client.patch("/users/ada", json={"role": "member"}, headers={"If-Match": "*"})
        assert (answer.status_code, answer.json()["reason"]) == (409, "conflict")
        assert (await client.delete("/users/ada")).status_code == 409


async def test_another_workspaces_things_look_like_things_that_are_not_there(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        team = await made(client, "/teams", {"name": "voice"})
        account = await made(client, "/accounts", {"name": "a", "provider": "cartesia", "origin": "https://api.cartesia.ai"})
        model = await made(client, "/accounts/a/models", {"name": "sonic-3", "type": "text-to-speech"})
        token = await made(client, "/tokens", {"principal": "user:ada"})
    other = await second_workspace(control_plane, "globex")
    paths = [
        f"/teams/{team['id']}",
        f"/accounts/{account['id']}",
        f"/accounts/{account['id']}/models/{model['id']}",
        f"/tokens/{token['id']}",
    ]
    async with other.client() as client:
        for path in paths:
            theirs, nobodys = await client.get(path), await client.get(path[:-1] + "0")
            assert (theirs.status_code, nobodys.status_code) == (404, 404), path
            assert theirs.json()["reason"] == nobodys.json()["reason"] == "not_found"
            assert (await client.delete(path)).status_code == 404
        assert (await client.get("/teams")).json()["items"] == []


# --- Versions, repeats, pages ---------------------------------------------------------------------------------------


async def test_an_update_needs_the_version_that_was_read(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await made(client, "/teams", {"name": "voice"})
        read = await client.get("/teams/voice")
        assert read.headers["etag"] == '"v1"'
        missing = await client.patch("/teams/voice", json={"name": "sound"})
        assert (missing.status_code, missing.json()["reason"]) == (428, "precondition_required")
        changed = await client.patch("/teams/voice", json={"name": "sound"}, headers={"If-Match": read.headers["etag"]})
        assert (changed.status_code, changed.headers["etag"]) == (200, '"v2"')
        stale = await client.patch("/teams/sound", json={"name": "noise"}, headers={"If-Match": read.headers["etag"]})
        assert (stale.status_code, stale.json()["reason"]) == (412, "changed_meanwhile")


async def test_two_updates_of_one_version_leave_one_winner(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        team = await made(client, "/teams", {"name": "voice"})
        answers = await asyncio.gather(
            *(client.patch(f"/teams/{team['id']}", json={"name": f"voice-{n}"}, headers={"If-Match": '"v1"'}) for n in range(4))
        )
    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412]


async def test_a_repeated_creation_gets_the_first_answer(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        headers = {"Idempotency-Key": "k1"}
        first = await client.post("/tokens", json={"principal": "user:ada"}, headers=headers)
        again = await client.post("/tokens", json={"principal": "user:ada"}, headers=headers)
        other = await client.post("/tokens", json={"principal": "user:ada", "name": "x"}, headers=headers)
        assert first.json() == again.json()
        assert again.headers["idempotent-replay"] == "true"
        assert (other.status_code, other.json()["reason"]) == (422, "idempotency_key_reused")


async def test_repeats_at_the_same_time_make_one_thing(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        answers = await asyncio.gather(
            *(client.post("/teams", json={"name": "voice"}, headers={"Idempotency-Key": "k"}) for _ in range(4))
        )
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["id"] for answer in answers}) == 1


async def test_a_failed_creation_does_not_use_its_key_up(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        headers = {"Idempotency-Key": "k"}
        body = {"subject": "team:voice"}
        await made(client, "/accounts", {"name": "a", "provider": "cartesia", "origin": "https://api.cartesia.ai"})
        assert (await client.post("/accounts/a/collaborators", json=body, headers=headers)).status_code == 404
        await made(client, "/teams", {"name": "voice"})
        assert (await client.post("/accounts/a/collaborators", json=body, headers=headers)).status_code == 201


async def test_a_minted_tokens_text_is_nowhere_in_the_database(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        minted = await client.post("/tokens", json={"principal": "user:ada"}, headers={"Idempotency-Key": "k"})
    token = minted.json()["token"]
    connection = await asyncpg.connect(control_plane.database.superuser_url)
    try:
        tables = await connection.fetch("SELECT tablename AS relname FROM pg_tables WHERE schemaname = 'public'")
        for table in tables:
            for row in await connection.fetch(f"SELECT * FROM {table['relname']}"):
                for value in row.values():
                    assert token not in str(value)
                    assert not (isinstance(value, bytes) and token.encode() in value)
    finally:
        await connection.close()


async def test_pages_give_everything_once_in_the_order_of_creation(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        for number in range(7):
            await made(client, "/teams", {"name": f"team-{number}"})
        names: list[str] = []
        cursor: str | None = None
        pages = 0
        while pages == 0 or cursor is not None:
            page = (await client.get("/teams", params={"limit": 3, **({"cursor": cursor} if cursor else {})})).json()
            names += [team["name"] for team in page["items"]]
            cursor = page["next_cursor"]
            pages += 1
    assert names == [f"team-{number}" for number in range(7)]
    assert pages == 3


@pytest.mark.parametrize("cursor", ["x", "////", "bm90IGFuIGlkIQ", "%00"])
async def test_a_cursor_that_is_none_is_refused(control_plane: RunningControlPlane, cursor: str) -> None:
    async with control_plane.client() as client:
        answer = await client.get("/teams", params={"cursor": cursor})
    assert answer.status_code == 422


# --- Problems -------------------------------------------------------------------------------------------------------


async def test_a_problem_says_what_is_wrong_and_what_to_do(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        answer = await client.post("/teams", json={"name": "Voice Team", "colour": "red"})
    problem = answer.json()
    assert answer.status_code == 422
    assert problem["reason"] == "invalid_request"
    assert {error["field"] for error in problem["errors"]} == {"name", "colour"}
    assert problem["request_id"] == answer.headers["x-glottis-request-id"]
    assert problem["help"] == "Correct the named fields and send it again."


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", "/teams", b"{", 400, "malformed_request"),
        ("POST", "/teams", b'{"name": "voice\x00"}', 400, "malformed_request"),
        ("POST", "/teams", b'{"name": "a"} x', 400, "malformed_request"),
        ("GET", "/nothing", b"", 404, "no_such_route"),
        ("PUT", "/teams", b"{}", 405, "method_not_allowed"),
        ("GET", "/teams/x%00y", b"", 422, "invalid_request"),
        ("GET", "/teams?limit=0", b"", 422, "invalid_request"),
    ],
)
async def test_bad_requests_get_their_reason(
    control_plane: RunningControlPlane, method: str, path: str, body: bytes, status: int, reason: str
) -> None:
    async with control_plane.client() as client:
        answer = await client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)


async def test_a_name_that_is_taken_is_a_conflict(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await made(client, "/teams", {"name": "voice"})
        answer = await client.post("/teams", json={"name": "voice"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "already_exists")


async def test_an_issuer_that_users_need_is_not_deleted(control_plane: RunningControlPlane) -> None:
    issuer = {"name": "idp", "issuer": "https://idp.example.com", "audiences": ["glottis"]}
    async with control_plane.client() as client:
        await made(client, "/issuers", issuer)
        await made(client, "/users", {"name": "grace", "issuer": "idp", "subject": "00u1"})
        answer = await client.delete("/issuers/idp")
    assert (answer.status_code, answer.json()["reason"]) == (409, "in_use")


async def test_an_audience_of_another_workspace_is_taken(control_plane: RunningControlPlane) -> None:
    issuer = {"name": "idp", "issuer": "https://idp.example.com", "audiences": ["glottis"]}
    async with control_plane.client() as client:
        await made(client, "/issuers", issuer)
    other = await second_workspace(control_plane, "globex")
    async with other.client() as client:
        answer = await client.post("/issuers", json=issuer)
        assert (answer.status_code, answer.json()["reason"]) == (409, "already_exists")
        assert (await client.post("/issuers", json={**issuer, "audiences": ["globex"]})).status_code == 201


async def test_our_own_issuer_is_registered_by_nobody(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        answer = await client.post(
            "/issuers", json={"name": "me", "issuer": f"{control_plane.url}/w/globex", "audiences": ["glottis"]}
        )
    assert answer.status_code == 422
    assert answer.json()["detail"] == "That is this control plane's own issuer; its tokens need no registration."


async def test_a_model_that_the_provider_does_not_have_is_refused(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        await made(client, "/accounts", {"name": "a", "provider": "cartesia", "origin": "https://api.cartesia.ai"})
        answer = await client.post("/accounts/a/models", json={"name": "ink-whisper", "type": "text-to-speech"})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "ink-whisper is a speech-to-text model of cartesia."


@pytest.mark.parametrize(
    "origin",
    [
        "http://api.cartesia.ai",
        "https://127.0.0.1",
        "https://169.254.169.254",
        "https://[::ffff:169.254.169.254]",
        "https://0xa9fea9fe",
        "https://2852039166",
        "https://[fd00:ec2::254]",
        "https://metadata.google.internal",
        "https://localhost",
        "https://u:p@api.cartesia.ai",
    ],
)
async def test_an_origin_that_leads_inside_is_refused_at_save(control_plane: RunningControlPlane, origin: str) -> None:
    async with control_plane.client() as client:
        answer = await client.post("/accounts", json={"name": "a", "provider": "cartesia", "origin": origin})
    assert (answer.status_code, answer.json()["reason"]) == (422, "origin_refused")


async def test_a_token_for_minting_mints_and_changes_nothing_else(control_plane: RunningControlPlane) -> None:
    async with control_plane.client(await token_of(control_plane, "user:ada", scopes=["tokens"])) as client:
        assert (await client.post("/tokens", json={"principal": "user:ada"})).status_code == 201
        assert (await client.post("/teams", json={"name": "voice"})).status_code == 403
        assert (await client.get("/teams")).status_code == 403
        wider = await client.post("/tokens", json={"principal": "user:ada", "audience": "glottis-api"})
        assert (wider.status_code, wider.json()["detail"]) == (403, "A token cannot mint one that may do more than itself.")


async def test_a_narrowed_token_cannot_rotate_its_way_to_a_wider_one(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        whole = (await client.get("/tokens", params={"audience": "glottis-api"})).json()["items"][0]
        reads = await made(client, "/tokens", {"principal": "user:ada", "audience": "glottis-api", "scopes": ["read"]})
    async with control_plane.client(await token_of(control_plane, "user:ada", scopes=["tokens"])) as client:
        for wider in (whole, reads):
            answer = await client.post(f"/tokens/{wider['id']}/rotate", json={"overlap_seconds": 60})
            assert (answer.status_code, answer.json()["detail"]) == (
                403,
                "A token cannot mint one that may do more than itself.",
            )
    async with control_plane.client(await token_of(control_plane, "user:ada", scopes=["read", "tokens"])) as client:
        assert (await client.post(f"/tokens/{reads['id']}/rotate", json={})).status_code == 201


@pytest.mark.parametrize(
    ("path", "body", "field", "sentence"),
    [
        (
            "/users",
            {"name": "grace", "subject": "00u1"},
            "subject",
            "`issuer` and `subject` belong together: give both or neither.",
        ),
        (
            "/issuers",
            {"name": "idp", "issuer": "https://idp.example.com", "audiences": ["glottis", "glottis"]},
            "audiences",
            "An audience is listed twice.",
        ),
        (
            "/issuers",
            {
                "name": "idp",
                "issuer": "https://idp.example.com",
                "audiences": ["glottis"],
                "jwks": '{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA","d":"AA"}]}',
            },
            "jwks",
            "That key set holds private or shared keys; give the public ones alone.",
        ),
        (
            "/accounts",
            {
                "name": "eu",
                "provider": "cartesia",
                "origin": "https://api.cartesia.ai",
                "ca": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            },
            "ca",
            "Those certificates cannot be read.",
        ),
        (
            "/export-targets",
            {
                "name": "otlp",
                "endpoint": "https://otlp.example.com",
                "ca": "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n",
            },
            "ca",
            "That file holds a private key; give the certificates alone.",
        ),
    ],
)
async def test_what_gateways_could_not_use_is_refused_when_it_is_saved(
    control_plane: RunningControlPlane, path: str, body: dict[str, Any], field: str, sentence: str
) -> None:
    async with control_plane.client() as client:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["errors"]) == (422, [{"field": field, "sentence": sentence}])
        assert body["name"] not in [one["name"] for one in (await client.get(path)).json()["items"]]


async def test_a_change_to_authorities_that_cannot_be_read_leaves_the_account_as_it_was(
    control_plane: RunningControlPlane,
) -> None:
    async with control_plane.client() as client:
        account = {"name": "eu", "provider": "cartesia", "origin": "https://api.cartesia.ai", "credential": "sk_1"}
        made_as = await made(client, "/accounts", account)
        answer = await client.patch("/accounts/eu", json={"ca": "-----BEGIN CERTIFICATE-----"}, headers={"If-Match": "*"})
        assert (answer.status_code, answer.json()["detail"]) == (422, "Those certificates cannot be read.")
        assert (await client.get("/accounts/eu")).json() == made_as


async def test_a_misspelt_filter_is_refused_and_not_taken_for_none(control_plane: RunningControlPlane) -> None:
    async with control_plane.client() as client:
        answer = await client.get("/tokens", params={"revoked": "true"})
    assert (answer.status_code, answer.json()["errors"]) == (
        422,
        [
            {
                "field": "revoked",
                "sentence": "There is no such parameter here; there is audience, cursor, is_revoked, limit, principal.",
            }
        ],
    )


async def test_a_time_without_a_zone_is_utc(control_plane: RunningControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    price = {"provider": "cartesia", "unit": "characters", "price": "0.1", "effective": "2027-01-01T00:00:00"}
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        async with control_plane.client() as client:
            entry = await made(client, "/prices", price)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert entry["effective_ms"] == 1_798_761_600_000


async def test_only_somebody_with_a_token_may_send_a_large_file(control_plane: RunningControlPlane) -> None:
    large = b'{"document": {"version": 1, "teams": "%s"}}' % (b"a" * 5_000_000)
    json = {"Content-Type": "application/json"}
    for token, path, status, reason in (
        ("", "/apply", 413, "too_large"),
        ("not.a.token", "/apply", 413, "too_large"),
        (control_plane.token, "/teams", 413, "too_large"),
        (control_plane.token, "/apply", 422, "invalid_workspace_file"),
    ):
        async with control_plane.client(token) as client:
            answer = await client.post(path, content=large, headers=json)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), (token, path)
