"""The workspace file: what is taken, and that every mistake is told with its line and field."""

import json
from pathlib import Path

import pytest

from contracts.prices import Price
from contracts.secret import Secret
from contracts.snapshot import Grant, Model
from policy.workspace_file import (
    InvalidWorkspaceFile,
    Need,
    Reference,
    configuration,
    json_schema,
    needs,
    parse,
    parse_document,
    to_document,
)

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"
START = "version: 1\nworkspace: {id: acme}\n"


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidWorkspaceFile) as invalid:
        parse(text)
    return [str(problem) for problem in invalid.value.problems]


def test_the_example_workspace_is_taken() -> None:
    file = parse((EXAMPLES / "workspace.yaml").read_text())
    assert file.workspace.id == "acme"
    assert [account.name for account in file.accounts] == ["cartesia-eu", "kokoro-local"]


def test_the_example_gateway_runs_from_its_file_alone() -> None:
    file = parse((EXAMPLES / "gateway.yaml").read_text(), ("http://127.0.0.1:8880",))
    material = {
        "issuers.local.jwks": Secret('{"keys": []}'),
        "accounts.cartesia.credential.active": Secret("sk_car_1"),
        "accounts.kokoro.credential.active": Secret("kk_1"),
    }
    made = configuration(file, material, created_at_ms=1_000)
    assert made.credentials == {("cartesia", "active"): Secret("sk_car_1"), ("kokoro", "active"): Secret("kk_1")}
    assert made.snapshot.grants == (
        Grant(id="cartesia/team:voice", workspace="local", account="cartesia", subject="team:voice"),
        Grant(id="kokoro/team:voice", workspace="local", account="kokoro", subject="team:voice"),
    )
    assert Model(id="kokoro/kokoro-82m", workspace="local", account="kokoro", name="kokoro-82m", type="text-to-speech") in (
        made.snapshot.models
    )
    assert made.snapshot.issuers[0].jwks == b'{"keys": []}'


def test_what_stands_outside_the_file_is_listed_for_the_caller_to_fetch() -> None:
    file = parse((EXAMPLES / "workspace.yaml").read_text())
    assert needs(file) == (
        Need("accounts.cartesia-eu.credential.active", Reference("env:CARTESIA_API_KEY"), is_secret=True),
        Need("accounts.kokoro-local.credential.active", Reference("file:/run/secrets/kokoro-key"), is_secret=True),
    )


def test_the_json_form_holds_no_reference_and_is_read_back_as_the_same_entries() -> None:
    file = parse((EXAMPLES / "workspace.yaml").read_text().replace("env:CARTESIA_API_KEY", "value:sk_car_in_the_file", 1))
    document = json.dumps(to_document(file))
    assert "sk_car_in_the_file" not in document
    assert "/run/secrets" not in document
    again = parse_document(json.loads(document))
    assert again.prices == file.prices
    assert [need.key for need in needs(again)] == [need.key for need in needs(file)]


def test_a_secret_in_the_file_is_not_printed() -> None:
    assert repr(Reference("value:sk_car_in_the_file")) == "Reference(value:…)"


def test_prices_keep_every_digit_and_begin_at_midnight_utc() -> None:
    file = parse(
        START + "prices:\n- {provider: cartesia, model: sonic-3, unit: characters, price: 0.000038, effective: 2026-01-01}\n"
    )
    assert configuration(file, {}, created_at_ms=0).prices == (
        Price(
            workspace="acme",
            provider="cartesia",
            model="sonic-3",
            unit="characters",
            price="0.000038",
            effective_ms=1_767_225_600_000,
        ),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: The file is empty."),
        ("a: [", "line 1: This is not YAML: expected the node content, but found '<stream end>'."),
        ("version: 1\nversion: 1\n", "line 2: version: `version` is given twice."),
        ("- 1\n", "line 1: A workspace file is a mapping that begins with `version: 1`."),
        ("a: !!python/name:os.system x\n", "line 1: a: The tag tag:yaml.org,2002:python/name:os.system is not allowed."),
        ("version: 2\nworkspace: {id: acme}\n", "line 1: version: Write `version: 1`; this release knows no other."),
        (START + "teans: []\n", "line 3: teans: There is no such field here; did you mean `teams`?"),
        (START + "teams: {name: a}\n", "line 3: teams: This must be a list: each entry begins with `- `."),
        (START + "teams:\n- nme: a\n", "line 4: teams[0].nme: There is no such field here; did you mean `name`?"),
        (START + "teams:\n- name: 5\n", "line 4: teams[0].name: Expected text, found a whole number; put it in quotes."),
        (START + "teams:\n- {}\n", "line 4: teams[0].name: This field is missing."),
        (START + "teams:\n- name: a\n- name: a\n", "line 5: teams[1].name: a is defined twice."),
        (
            START + "teams:\n- name: Voice\n",
            "line 4: teams[0].name: "
            "Use 1 to 63 of a-z, 0-9 and inner hyphens: the name stands in paths, subjects and host labels.",
        ),
        (
            START + "teams:\n- name: voice\nusers:\n- name: ada\n  teams: [voces]\n",
            "line 7: users[0].teams[0]: There is no team voces in this file; did you mean voice?",
        ),
        (
            START + "users:\n- {name: ada}\nservice_accounts:\n- {name: ada}\n",
            "line 6: service_accounts[0].name: A user is called ada already; principals share names.",
        ),
        (
            START + "users:\n- {name: ada, subject: x}\n",
            "line 4: users[0]: `issuer` and `subject` belong together: give both or neither.",
        ),
        (
            START + "issuers:\n- {name: idp, issuer: 'http://idp.example', audiences: [a]}\n",
            "line 4: issuers[0].issuer: Use https. An operator can list a plain http origin in GLOTTIS_ALLOWED_PRIVATE_ORIGINS.",
        ),
        (
            START + "issuers:\n- {name: idp, issuer: 'https://idp.example', audiences: [a], algorithms: [HS256]}\n",
            "line 4: issuers[0].algorithms[0]: This is none of the known values: "
            "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA.",
        ),
        (
            START + "issuers:\n- {name: idp, issuer: 'https://idp.example', audiences: [a], expiry: never}\n",
            "line 4: issuers[0].expiry: Write finish-session, grace:<seconds> or hard.",
        ),
        (
            START + "accounts:\n- name: c\n  provider: cartesia\n  origin: https://api.cartesia.ai\n  credential: sk_car_1\n",
            "line 7: accounts[0].credential: Write env:NAME, file:PATH or value:TEXT here; "
            "a bare text could be a secret in the wrong place.",
        ),
        (
            START + "accounts:\n- name: c\n  provider: cartesia\n  origin: https://api.cartesia.ai\n  models:\n"
            "  - {name: ink-whisper, type: text-to-speech}\n",
            "line 8: accounts[0].models[0].name: ink-whisper is a speech-to-text model of cartesia.",
        ),
        (
            START + "accounts:\n- name: c\n  provider: cartesia\n  origin: https://api.cartesia.ai\n  collaborators:\n"
            "  - {subject: ada}\n",
            "line 8: accounts[0].collaborators[0].subject: Write user:<name>, service_account:<name> or team:<name>.",
        ),
        (
            START + "prices:\n- {provider: cartesia, unit: characters, price: -1}\n",
            "line 4: prices[0].price: A price is a decimal number that is not negative.",
        ),
        (
            START + "prices:\n- {provider: cartesia, unit: characters, price: 1, effective: tomorrow}\n",
            "line 4: prices[0].effective: Write a date such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z.",
        ),
        (
            START + "xyzzy: {}\n",
            "line 3: xyzzy: There is no such field here.",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_and_field(text: str, problem: str) -> None:
    assert problem in problems_of(text)


def test_all_mistakes_of_one_kind_are_told_at_once_in_the_order_of_the_file() -> None:
    text = START + "teams:\n- nme: a\n- name: 5\nusers:\n- {name: ada, role: boss}\n"
    assert [problem.split(":")[0] for problem in problems_of(text)] == ["line 4", "line 5", "line 7"]


def test_aliases_cannot_blow_a_small_file_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too many values" in problems_of("\n".join(lines))[0]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "accounts.c.credential.active",
            "sk_car\n",
            "A credential is 1 to 4096 visible ASCII characters without spaces or line breaks.",
        ),
        ("accounts.c.ca", "hello", "That is not a PEM file with certificates."),
        ("issuers.idp.jwks", "[]", 'That is not a JWKS document: JSON of the form {"keys": [...]}.'),
        ("workspace.transcript_key", "short", "A transcript key has at least 16 bytes."),
    ],
)
def test_material_that_cannot_be_used_is_refused(key: str, value: str, sentence: str) -> None:
    material = {
        "accounts.c.credential.active": Secret("sk_car_1"),
        "accounts.c.ca": Secret("-----BEGIN CERTIFICATE-----"),
        "issuers.idp.jwks": Secret('{"keys": []}'),
        "workspace.transcript_key": Secret("0123456789abcdef"),
    }
    file = parse(
        "version: 1\nworkspace: {id: acme, transcript_key: 'env:K'}\n"
        "issuers:\n- {name: idp, issuer: 'https://idp.example', audiences: [a], jwks: 'file:k'}\n"
        "accounts:\n- {name: c, provider: cartesia, origin: 'https://api.cartesia.ai', credential: 'env:C', ca: 'file:ca'}\n"
    )
    with pytest.raises(InvalidWorkspaceFile) as invalid:
        configuration(file, {**material, key: Secret(value)}, created_at_ms=0)
    assert [(problem.field, problem.sentence) for problem in invalid.value.problems] == [(key, sentence)]


def test_the_published_schema_is_the_one_that_is_checked() -> None:
    published = json.loads((EXAMPLES / "workspace.schema.json").read_text())
    assert published == json.loads(json.dumps(json_schema())), (
        "run: glottis validate --print-schema > deploy/examples/workspace.schema.json"
    )


def test_a_large_file_is_read_by_the_fast_parser_with_the_same_lines() -> None:
    filler = "".join(f"- name: team-{number}\n" for number in range(5_000))
    assert len(filler) > 65_536
    assert problems_of(START + "teams:\n" + filler + "- nme: x\n") == [
        "line 5004: teams[5000].nme: There is no such field here; did you mean `name`?"
    ]
    assert problems_of(START + "teams:\n" + filler + "- name: [\n")[0].startswith("line 5005: This is not YAML: ")
