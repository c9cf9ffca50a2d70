"""How we say no: one table from reason to status, close code, sentence and what to do.

The same refusal has the same reason in the answer, the log line, the metric and the span. The shape of the answer is the
one that the provider's SDK parses for the caller's `Cartesia-Version`; policy refusals carry `x-should-retry: false`,
because a bare 429 makes the SDKs send three requests each time. Faults of the upstream are answered from the same table.
This module knows no request: it is given what to say. Read next: `policy.decide`.
"""

import json
from dataclasses import dataclass
from http import HTTPStatus

from policy.facts import Header
from policy.providers import registry
from policy.providers.profile import Endpoint, Profile


@dataclass(frozen=True, slots=True)
class Refusal:
    """Our decision not to forward. `detail` completes the public sentence; it names what the caller itself sent."""

    reason: str
    """a key of the table below"""
    detail: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """extra answer headers, for example `Retry-After`"""
    may_be_billed: bool = False
    """the request's text had left for the provider: an SDK must not send it again by itself, whatever the rule says"""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a reason means on each wire."""

    status: int
    close_code: int
    title: str
    sentence: str
    """without a full stop: `detail` may follow after a colon"""
    help: str
    """what the caller can do; empty where nothing but trying later helps"""
    may_retry: bool = False
    """False: `x-should-retry: false` keeps SDKs from sending the same request again"""


_TOKEN_HELP = "Present a valid caller token as `Authorization: Bearer <token>` or `X-API-Key`."
_NEW_TOKEN = "Fetch or mint a new token and try again."
_OWNER = "Ask an owner of the account or an administrator of the workspace."

POLICY = 1008
"""RFC 6455 §7.4.1; the SDKs take it as final and do not reconnect"""

TABLE: dict[str, Rule] = {
    # Who are you?
    "token_missing": Rule(401, POLICY, "Unauthorized", "The request carries no caller token", _TOKEN_HELP),
    "token_malformed": Rule(401, POLICY, "Unauthorized", "The caller token is not a signed JWT", _TOKEN_HELP),
    "token_too_long": Rule(401, POLICY, "Unauthorized", "The caller token is longer than 8192 bytes", _TOKEN_HELP),
    "scheme_unsupported": Rule(
        401, POLICY, "Unauthorized", "The Authorization header uses another scheme than Bearer", _TOKEN_HELP
    ),
    "algorithm_refused": Rule(
        401, POLICY, "Unauthorized", "The token's signature algorithm is not accepted from its issuer", _TOKEN_HELP
    ),
    "token_type_refused": Rule(401, POLICY, "Unauthorized", "The token is of a type that does not open the gateway", _TOKEN_HELP),
    "claims_invalid": Rule(401, POLICY, "Unauthorized", "The token's claims are missing or not as they must be", _TOKEN_HELP),
    "issuer_unknown": Rule(
        401,
        POLICY,
        "Unauthorized",
        "The token's issuer and audience are not registered here",
        "Use a token that was issued for this gateway.",
    ),
    "key_unknown": Rule(401, POLICY, "Unauthorized", "The token is signed with a key that its issuer does not list", _NEW_TOKEN),
    "signature_invalid": Rule(401, POLICY, "Unauthorized", "The token's signature does not match", _TOKEN_HELP),
    "token_expired": Rule(401, POLICY, "Unauthorized", "The token has expired", _NEW_TOKEN),
    "token_not_yet_valid": Rule(
        401, POLICY, "Unauthorized", "The token is not valid yet", "Check the clock of the machine that issues tokens."
    ),
    "token_revoked": Rule(401, POLICY, "Unauthorized", "The token was revoked", _NEW_TOKEN),
    "principal_unknown": Rule(403, POLICY, "Forbidden", "The token's subject is not registered in the workspace", _OWNER),
    "principal_disabled": Rule(403, POLICY, "Forbidden", "The token's principal is disabled", _OWNER),
    "principal_revoked": Rule(403, POLICY, "Forbidden", "The principal's access was revoked", _OWNER),
    "keys_unavailable": Rule(
        503, 1013, "Service Unavailable", "The issuer's keys could not be fetched yet", "Try again in a few seconds.", True
    ),
    # How the token was presented
    "credentials_conflict": Rule(
        400, POLICY, "Bad Request", "The request carries several caller tokens that differ", "Send one token, in one place."
    ),
    "credential_misplaced": Rule(
        400,
        POLICY,
        "Bad Request",
        "The caller token also stands where it would reach the provider",
        "Send the token only in Authorization, X-API-Key, access_token, api_key or the auth subprotocol.",
    ),
    "subprotocol_alone": Rule(
        400,
        POLICY,
        "Bad Request",
        "The subprotocol glottis.auth.<token> was offered without glottis.v1",
        "Offer both: new WebSocket(url, ['glottis.v1', 'glottis.auth.' + token]).",
    ),
    "origin_not_allowed": Rule(
        403,
        POLICY,
        "Forbidden",
        "The token may not be used from this origin",
        "Mint the browser token for the page's own origin.",
    ),
    "token_in_use": Rule(
        403,
        POLICY,
        "Forbidden",
        "The single-use token already has an open session",
        "Close the other session or mint another token.",
    ),
    "single_use_unavailable": Rule(
        503,
        1013,
        "Service Unavailable",
        "It cannot be told now whether the single-use token has an open session",
        "Try again shortly, or use a token that is not single-use.",
        True,
    ),
    "cannot_mint": Rule(
        403, POLICY, "Forbidden", "An access token cannot mint another", "Use the token that it was derived from."
    ),
    # May you?
    "account_not_granted": Rule(403, POLICY, "Forbidden", "The provider account does not exist or is not granted to you", _OWNER),
    "account_ambiguous": Rule(
        400,
        POLICY,
        "Bad Request",
        "Several provider accounts could serve this request",
        "Pin one of the paths named, or set a default account.",
    ),
    "model_not_granted": Rule(403, POLICY, "Forbidden", "The model does not exist or is not granted to you", _OWNER),
    "model_missing": Rule(400, POLICY, "Bad Request", "The request names no model", "Name a model that is granted to you."),
    "context_unknown": Rule(
        400,
        POLICY,
        "Bad Request",
        "This context is not open on this socket",
        "Open it with a message that names a model and a voice.",
    ),
    "model_on_another_account": Rule(
        400,
        POLICY,
        "Bad Request",
        "The model belongs to another provider account than this socket is bound to",
        "Open another socket, with the pin named.",
    ),
    "operation_not_granted": Rule(403, POLICY, "Forbidden", "This operation is not granted to you", _OWNER),
    "voice_not_allowed": Rule(
        403,
        POLICY,
        "Forbidden",
        "The voice is not among those that the account and your teams approve of",
        "Use an approved voice, or ask an owner of the account.",
    ),
    "save_not_granted": Rule(
        403,
        POLICY,
        "Forbidden",
        "Keeping audio in the provider account (`save`) is not granted to you",
        "Leave `save` out, or ask an owner of the account for `voices.write`.",
    ),
    "credential_unavailable": Rule(
        503,
        1011,
        "Service Unavailable",
        "The provider account has no usable credential",
        "Ask an owner of the account to set its credential.",
    ),
    "minting_unavailable": Rule(
        503,
        1011,
        "Service Unavailable",
        "Access tokens cannot be minted here",
        "Ask an administrator to give the workspace a key for access tokens.",
    ),
    "limit_reached": Rule(
        429, POLICY, "Too Many Requests", "A limit of the workspace is reached", "Slow down, or raise the limit."
    ),
    "budget_spent": Rule(402, POLICY, "Payment Required", "A budget of the workspace is spent", "Ask an administrator."),
    # Is it readable with certainty?
    "head_malformed": Rule(400, 1002, "Bad Request", "The request head is malformed", "Send HTTP/1.1 as in RFC 9112."),
    "path_refused": Rule(
        400,
        POLICY,
        "Bad Request",
        "The path can be read in more than one way",
        "Send a plain path, without dot segments, encoded slashes, parameters or empty segments.",
    ),
    "override_refused": Rule(
        400,
        POLICY,
        "Bad Request",
        "A header that gives the request another method or path is not relayed",
        "Send the method and path that are meant.",
    ),
    "query_refused": Rule(400, POLICY, "Bad Request", "The query holds bytes that a query cannot hold", "Percent-encode them."),
    "judged_parameter_twice": Rule(
        400, POLICY, "Bad Request", "A query parameter that is judged stands there twice", "Send it once."
    ),
    "judged_parameter_spelling": Rule(
        400, POLICY, "Bad Request", "A query parameter that is judged is spelled otherwise", "Spell it as the provider does."
    ),
    "metadata_invalid": Rule(
        400,
        POLICY,
        "Bad Request",
        "X-Glottis-Metadata is not as it must be",
        "Send it once: a JSON object of at most 32 strings, keys up to 64 and values up to 128 characters.",
    ),
    "content_type_unsupported": Rule(
        415, POLICY, "Unsupported Media Type", "The body's type cannot be judged on this endpoint", "Send the type that it takes."
    ),
    "content_encoding_unsupported": Rule(
        415, POLICY, "Unsupported Media Type", "A body that is judged cannot be content-encoded", "Send it unencoded."
    ),
    "body_not_json": Rule(400, POLICY, "Bad Request", "The text sent is not a JSON object in UTF-8", "Send one JSON object."),
    "body_too_deep": Rule(400, POLICY, "Bad Request", "The JSON is nested too deeply", "Send fewer levels."),
    "judged_key_twice": Rule(400, POLICY, "Bad Request", "A key that is judged stands there twice", "Send it once."),
    "judged_key_spelling": Rule(
        400, POLICY, "Bad Request", "A key that is judged is spelled otherwise", "Spell it as the provider does."
    ),
    "judged_value_invalid": Rule(
        400, POLICY, "Bad Request", "A value that is judged is of another type than the provider takes", "Send the right type."
    ),
    "form_malformed": Rule(
        400, POLICY, "Bad Request", "The form cannot be read with certainty", "Send multipart/form-data as in RFC 7578."
    ),
    "form_field_twice": Rule(400, POLICY, "Bad Request", "A form field that is judged stands there twice", "Send it once."),
    "form_field_too_large": Rule(400, POLICY, "Bad Request", "A form field that is judged is too large", "Send a shorter one."),
    "form_order": Rule(
        400,
        POLICY,
        "Bad Request",
        "The model stands after more data than can be held, and your models lead to different accounts",
        "Send the model field before the file, or pin one of the paths named.",
    ),
    "body_too_large": Rule(413, 1009, "Content Too Large", "The body is larger than this endpoint takes", "Send less at once."),
    "message_too_large": Rule(
        413, 1009, "Content Too Large", "The message is larger than this endpoint takes", "Send less at once."
    ),
    "protocol_error": Rule(400, 1002, "Bad Request", "The WebSocket protocol was broken", "Send frames as in RFC 6455."),
    "upgrade_refused": Rule(
        400, POLICY, "Bad Request", "The upgrade is not a WebSocket handshake", "Send a handshake as in RFC 6455 §4.1."
    ),
    "host_invalid": Rule(400, POLICY, "Bad Request", "The request must carry exactly one Host", "Send one Host header."),
    "head_too_large": Rule(
        431, POLICY, "Request Header Fields Too Large", "The request head is too large", "Send fewer headers."
    ),
    "head_timeout": Rule(408, POLICY, "Request Timeout", "The request head took too long", "", True),
    "body_timeout": Rule(408, POLICY, "Request Timeout", "The request body stalled", "", True),
    "not_found": Rule(404, POLICY, "Not Found", "There is nothing at this path", "Provider mounts are /cartesia/ and /kokoro/."),
    # Not now
    "connection_limit": Rule(503, 1013, "Service Unavailable", "Too many connections are open", "Try again shortly.", True),
    "draining": Rule(503, 1012, "Service Unavailable", "This gateway is shutting down", "Connect again.", True),
    "not_ready": Rule(503, 1013, "Service Unavailable", "This gateway has no configuration yet", "Try again shortly.", True),
    "config_stale": Rule(
        503, 1013, "Service Unavailable", "This gateway's configuration is too old to act on", "Tell the operators.", True
    ),
    "ended_by_admin": Rule(403, POLICY, "Forbidden", "An administrator ended this session", _OWNER),
    "stalled": Rule(408, POLICY, "Request Timeout", "Nothing was read from this connection for too long", "Read what is sent."),
    "idle": Rule(408, 1000, "Request Timeout", "Nothing was sent on this connection for too long", "Connect again.", True),
    # Faults of the upstream, told in the same way
    "upstream_unreachable": Rule(502, 1011, "Bad Gateway", "The provider could not be reached", "", True),
    "upstream_refused_address": Rule(
        502, 1011, "Bad Gateway", "The provider account's address is not one that this gateway may dial", _OWNER
    ),
    "upstream_tls": Rule(502, 1011, "Bad Gateway", "The provider's certificate was not accepted", _OWNER),
    "upstream_refused": Rule(
        502, POLICY, "Bad Gateway", "The provider account that serves this model refused the session", _OWNER
    ),
    "upstream_timeout": Rule(504, 1011, "Gateway Timeout", "The provider did not answer in time", "", True),
    "upstream_gone": Rule(502, 1011, "Bad Gateway", "The provider ended the connection without an answer", "", True),
    "upstream_protocol": Rule(502, 1011, "Bad Gateway", "The provider's answer was not valid HTTP", "", True),
    "redirect_refused": Rule(502, 1011, "Bad Gateway", "The provider redirected to another host, which is not followed", _OWNER),
    "internal": Rule(500, 1011, "Internal Server Error", "The gateway failed", "Report the request id.", True),
}
"""reason -> Rule. Reasons are stable: dashboards, alerts and callers compare them."""

_BILLED_HELP = "The text had been sent to the provider and may be billed: send it again only if you mean to."

_DETAIL_LIMIT = 300
_CLOSE_REASON_LIMIT = 123
"""bytes, RFC 6455 §5.5.1"""


def message_of(refusal: Refusal) -> str:
    """Return the public sentence, completed by the refusal's detail, on one line."""
    rule = TABLE[refusal.reason]
    if not refusal.detail:
        return rule.sentence + "."
    detail = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in refusal.detail[:_DETAIL_LIMIT])
    return f"{rule.sentence}: {detail}."


def _help(refusal: Refusal) -> str:
    rule = TABLE[refusal.reason]
    return _BILLED_HELP if refusal.may_be_billed and rule.may_retry else rule.help


def _advice(refusal: Refusal) -> str:
    return f"{message_of(refusal)} {_help(refusal)}".rstrip()


def _speaks_json(place: Endpoint | Profile, version: str) -> bool:
    """Tell whether errors are JSON in this version of the protocol; a caller that names none gets the newest shape."""
    profile = place if isinstance(place, Profile) else registry.PROFILES[place.provider]
    return not _is_date(version) or version >= profile.json_errors_since


def _is_date(version: str) -> bool:
    return len(version) == 10 and version[4] == version[7] == "-" and version.isascii() and version.replace("-", "").isdigit()


def http_answer(
    refusal: Refusal, place: Endpoint | Profile | None, cartesia_version: str, request_id: str
) -> tuple[int, str, list[Header], bytes]:
    """Return (status, reason phrase, headers, body) of the answer to an HTTP request or a handshake.

    place: the endpoint or profile that was asked, which decides the shape; None: outside any mount, our own shape.
    cartesia_version: as the caller sent it, may be empty. The caller of this function leaves the body out for HEAD.
    """
    rule = TABLE[refusal.reason]
    content_type = b"application/json"
    if place is None:
        shape: dict[str, object] = {
            "error": {
                "reason": refusal.reason,
                "message": message_of(refusal),
                "help": _help(refusal),
                "request_id": request_id,
            }
        }
        body = json.dumps(shape, ensure_ascii=False).encode("utf-8", "replace")
    elif _speaks_json(place, cartesia_version):
        shape = {
            "error_code": refusal.reason,
            "title": rule.title,
            "message": _advice(refusal),
            "request_id": request_id,
        }
        body = json.dumps(shape, ensure_ascii=False).encode("utf-8", "replace")
    else:
        content_type = b"text/plain; charset=utf-8"
        body = f"{rule.title}: {_advice(refusal)} ({refusal.reason}, request {request_id})".encode("utf-8", "replace")
    headers: list[Header] = [
        (b"Content-Type", content_type),
        (b"Content-Length", b"%d" % len(body)),
        (b"X-Glottis-Request-Id", request_id.encode("ascii", "replace")),
        (b"Cache-Control", b"no-store"),
    ]
    if refusal.may_be_billed or not rule.may_retry:
        headers.append((b"x-should-retry", b"false"))
    if rule.status == 401:
        # RFC 6750 §3.1: no error code where no token was presented at all.
        detail = b"" if refusal.reason == "token_missing" else b', error="invalid_token"'
        headers.append((b"WWW-Authenticate", b'Bearer realm="glottis"' + detail))
    headers.extend(refusal.headers)
    return rule.status, HTTPStatus(rule.status).phrase, headers, body


def in_band_error(refusal: Refusal, cartesia_version: str, context_id: str | None, request_id: str) -> bytes:
    """Return the JSON text of an `error` message on an open socket, in the shape of the caller's version."""
    rule = TABLE[refusal.reason]
    shape: dict[str, object] = {"type": "error", "done": True, "status_code": rule.status}
    if _speaks_json(registry.PROFILES["cartesia"], cartesia_version):
        shape |= {"error_code": refusal.reason, "title": rule.title, "message": _advice(refusal)}
    else:
        shape["error"] = f"{rule.title}: {_advice(refusal)} ({refusal.reason})"
    shape["request_id"] = request_id
    if context_id is not None:
        shape["context_id"] = context_id
    # Escaped: a context id may hold a lone surrogate, which UTF-8 cannot carry in clear.
    return json.dumps(shape).encode("ascii")


def close_of(refusal: Refusal) -> tuple[int, bytes]:
    """Return (close code, reason) of the close frame; the reason is the stable token, at most 123 bytes."""
    return TABLE[refusal.reason].close_code, refusal.reason.encode("ascii")[:_CLOSE_REASON_LIMIT]
