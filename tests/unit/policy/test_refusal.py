"""How a refusal looks on each wire."""

import json

import pytest

from policy.facts import Unjudgeable
from policy.providers.registry import PROFILES, endpoint_named
from policy.refusal import TABLE, Refusal, close_of, http_answer, in_band_error, message_of

CARTESIA = PROFILES["cartesia"]
REFUSED = Refusal("model_not_granted", "sonic-9")


@pytest.mark.parametrize("version", ["2026-03-01", "2026-08-14", "", "latest"])
def test_newer_versions_get_json(version: str) -> None:
    status, phrase, headers, body = http_answer(REFUSED, CARTESIA, version, "0192")

    assert (status, phrase) == (403, "Forbidden")
    assert json.loads(body) == {
        "error_code": "model_not_granted",
        "title": "Forbidden",
        "message": "The model does not exist or is not granted to you: sonic-9. "
        "Ask an owner of the account or an administrator of the workspace.",
        "request_id": "0192",
    }
    assert headers == [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", str(len(body)).encode()),
        (b"X-Glottis-Request-Id", b"0192"),
        (b"Cache-Control", b"no-store"),
        (b"x-should-retry", b"false"),
    ]


@pytest.mark.parametrize("version", ["2024-06-10", "2024-11-13", "2025-11-04", "2026-02-28"])
def test_older_versions_get_a_title_and_a_message(version: str) -> None:
    endpoint = endpoint_named(CARTESIA, "tts.bytes")
    _, _, headers, body = http_answer(REFUSED, endpoint, version, "0192")

    assert body == (
        b"Forbidden: The model does not exist or is not granted to you: sonic-9. Ask an owner of the account or an "
        b"administrator of the workspace. (model_not_granted, request 0192)"
    )
    assert headers[0] == (b"Content-Type", b"text/plain; charset=utf-8")


def test_outside_the_mounts_the_shape_is_ours() -> None:
    _, _, _, body = http_answer(Refusal("not_found"), None, "", "0192")

    assert json.loads(body) == {
        "error": {
            "reason": "not_found",
            "message": "There is nothing at this path.",
            "help": "Provider mounts are /cartesia/ and /kokoro/.",
            "request_id": "0192",
        }
    }


@pytest.mark.parametrize(
    ("reason", "challenge"),
    [
        ("token_missing", b'Bearer realm="glottis"'),
        ("token_expired", b'Bearer realm="glottis", error="invalid_token"'),
        ("model_not_granted", None),
    ],
)
def test_a_401_says_how_to_authenticate(reason: str, challenge: bytes | None) -> None:
    _, _, headers, _ = http_answer(Refusal(reason), CARTESIA, "", "0192")

    assert dict(headers).get(b"WWW-Authenticate") == challenge


def test_a_refusals_own_headers_are_sent() -> None:
    _, _, headers, _ = http_answer(Refusal("limit_reached", "", ((b"Retry-After", b"7"),)), CARTESIA, "", "0192")

    assert headers[-1] == (b"Retry-After", b"7")


def test_policy_refusals_are_not_retried_and_passing_troubles_may_be() -> None:
    retried = {reason for reason, rule in TABLE.items() if rule.may_retry}

    assert retried == {
        "keys_unavailable",
        "head_timeout",
        "body_timeout",
        "connection_limit",
        "draining",
        "not_ready",
        "config_stale",
        "single_use_unavailable",
        "idle",
        "upstream_unreachable",
        "upstream_timeout",
        "upstream_gone",
        "upstream_protocol",
        "internal",
    }


def test_an_in_band_error_has_the_shape_of_the_version() -> None:
    assert json.loads(in_band_error(REFUSED, "2026-08-14", "c1", "0192")) == {
        "type": "error",
        "done": True,
        "status_code": 403,
        "error_code": "model_not_granted",
        "title": "Forbidden",
        "message": "The model does not exist or is not granted to you: sonic-9. "
        "Ask an owner of the account or an administrator of the workspace.",
        "request_id": "0192",
        "context_id": "c1",
    }
    assert json.loads(in_band_error(REFUSED, "2024-11-13", None, "0192")) == {
        "type": "error",
        "done": True,
        "status_code": 403,
        "error": "Forbidden: The model does not exist or is not granted to you: sonic-9. Ask an owner of the account or an "
        "administrator of the workspace. (model_not_granted)",
        "request_id": "0192",
    }


def test_a_context_id_comes_back_as_it_was_whatever_it_holds() -> None:
    answer = in_band_error(REFUSED, "", 'a"\n\ud83d😀', "0192")

    assert json.loads(answer)["context_id"] == 'a"\n\ud83d😀'


def test_a_detail_stays_on_one_line_and_is_cut() -> None:
    message = message_of(Refusal("model_not_granted", "a\r\nX-Evil: 1\x1b[31m" + "x" * 1000))

    assert message.startswith("The model does not exist or is not granted to you: a��X-Evil: 1�[31mxxx")
    assert len(message) < 400


def test_a_lone_surrogate_in_a_detail_does_not_fail_the_answer() -> None:
    assert http_answer(Refusal("model_not_granted", "\ud83d"), CARTESIA, "2024-11-13", "0192")[0] == 403


@pytest.mark.parametrize("reason", sorted(TABLE))
def test_every_reason_fits_a_close_frame_and_reads_as_a_sentence(reason: str) -> None:
    rule = TABLE[reason]
    code, token = close_of(Refusal(reason))

    assert code == rule.close_code
    assert token == reason.encode()
    assert len(token) <= 123
    assert rule.sentence[0].isupper()
    assert not rule.sentence.endswith(".")
    assert rule.help == "" or rule.help.endswith(".")


def test_what_cannot_be_judged_has_a_rule() -> None:
    from policy import form, peek

    reasons = {value.reason for module in (form, peek) for value in vars(module).values() if isinstance(value, Unjudgeable)}

    assert reasons <= TABLE.keys()
    assert "judged_key_twice" in reasons
