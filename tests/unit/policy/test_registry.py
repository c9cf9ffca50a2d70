"""From a raw path to an endpoint and its operation class."""

import pytest

from policy.providers import registry


@pytest.mark.parametrize(
    ("method", "path", "is_websocket", "endpoint", "operation"),
    [
        ("GET", "/", False, "status", "voices.read"),
        ("POST", "/tts/bytes", False, "tts.bytes", "tts"),
        ("POST", "/tts/sse", False, "tts.sse", "tts"),
        ("GET", "/tts/websocket", True, "tts.websocket", "tts"),
        ("POST", "/infill/bytes", False, "infill.bytes", "tts"),
        ("POST", "/voice-changer/bytes", False, "voice_changer.bytes", "tts"),
        ("POST", "/voice-changer/sse", False, "voice_changer.sse", "tts"),
        ("POST", "/stt", False, "stt.batch", "stt"),
        ("POST", "/audio/transcriptions", False, "stt.transcriptions", "stt"),
        ("GET", "/stt/websocket", True, "stt.websocket", "stt"),
        ("GET", "/stt/turns/websocket", True, "stt.turns.websocket", "stt"),
        ("POST", "/access-token", False, "access_token", "tts"),
        ("GET", "/voices", False, "voices.list", "voices.read"),
        ("GET", "/voices/", False, "voices.list", "voices.read"),
        ("GET", "/voices/v1", False, "voices.get", "voices.read"),
        ("GET", "/accents", False, "accents.list", "voices.read"),
        ("POST", "/voices", False, "voices.create", "voices.write"),
        ("PATCH", "/voices/v1", False, "voices.update", "voices.write"),
        ("DELETE", "/voices/v1", False, "voices.delete", "voices.write"),
        ("POST", "/voices/localize", False, "voices.localize", "voices.write"),
        ("POST", "/voices/mix", False, "voices.mix", "voices.write"),
        ("PATCH", "/voices/v1/accents", False, "voices.accents.update", "voices.write"),
        ("DELETE", "/voices/v1/accents/a1", False, "voices.accents.delete", "voices.write"),
        ("POST", "/voices/clone", False, "voices.clone", "voices.clone"),
        ("POST", "/voices/clone/clip", False, "voices.clone.clip", "voices.clone"),
        ("GET", "/pronunciation-dicts/", False, "pronunciation_dicts.list", "voices.read"),
        ("GET", "/pronunciation-dicts/d1", False, "pronunciation_dicts.get", "voices.read"),
        ("POST", "/pronunciation-dicts/", False, "pronunciation_dicts.create", "voices.write"),
        ("PATCH", "/pronunciation-dicts/d1", False, "pronunciation_dicts.update", "voices.write"),
        ("DELETE", "/pronunciation-dicts/d1", False, "pronunciation_dicts.delete", "voices.write"),
        ("GET", "/datasets/", False, "datasets.list", "datasets"),
        ("POST", "/datasets/", False, "datasets.create", "datasets"),
        ("POST", "/datasets/s1/files", False, "datasets.files.create", "datasets"),
        ("DELETE", "/datasets/s1/files/f1", False, "datasets.files.delete", "datasets"),
        ("POST", "/datasets/s1/anything/new", False, "datasets.other", "datasets"),
        ("POST", "/fine-tunes/", False, "fine_tunes.create", "fine_tune"),
        ("GET", "/fine-tunes/t1/voices", False, "fine_tunes.voices", "fine_tune"),
        ("DELETE", "/fine-tunes/t1", False, "fine_tunes.delete", "fine_tune"),
        ("GET", "/agents", False, "agents.list", "agents"),
        ("DELETE", "/agents/a1", False, "agents.delete", "agents"),
        ("GET", "/agents/templates", False, "agents.templates", "agents"),
        ("GET", "/agents/calls", False, "agents.calls.list", "agents"),
        ("GET", "/agents/calls/c1/audio", False, "agents.calls.audio", "agents"),
        ("GET", "/agents/metrics/results/export", False, "agents.metrics.export", "agents"),
        ("POST", "/agents/a1/metrics/m1", False, "agents.metrics.attach", "agents"),
        ("POST", "/agents/phone-numbers/buy/now", False, "agents.other", "agents"),
        ("GET", "/agents/stream/a1", True, "agents.stream", "agents"),
        ("GET", "/usage/credits", False, "usage.other", "account"),
        ("GET", "/api-keys", False, "api_keys", "account"),
        ("GET", "/api-keys/k1", False, "api_keys.other", "account"),
        ("POST", "/links", False, "unlisted", "unlisted"),
        ("GET", "/tts/bytes", False, "unlisted", "unlisted"),
        ("GET", "/tts/bytes", True, "unlisted.websocket", "unlisted"),
        ("GET", "/tts/websocket", False, "unlisted", "unlisted"),
        ("GET", "/voices/v1/unknown", False, "unlisted", "unlisted"),
    ],
)
def test_every_row_of_the_endpoint_table_has_its_operation_class(
    method: str, path: str, is_websocket: bool, endpoint: str, operation: str
) -> None:
    match = registry.match(method, b"/cartesia" + path.encode(), is_websocket)

    assert match is not None
    assert (match.endpoint.id, match.endpoint.operation) == (endpoint, operation)


@pytest.mark.parametrize(
    ("method", "path", "is_websocket", "endpoint"),
    [
        ("POST", "/kokoro/invocations", False, "invocations"),
        ("GET", "/kokoro/invocations-bidirectional-stream", True, "invocations.websocket"),
        ("POST", "/kokoro/tts/bytes", False, "tts.bytes"),
        ("GET", "/kokoro/ping", False, "ping"),
        ("POST", "/kokoro/voices/clone", False, "unlisted"),
    ],
)
def test_the_kokoro_mount_serves_the_sagemaker_routes(method: str, path: str, is_websocket: bool, endpoint: str) -> None:
    match = registry.match(method, path.encode(), is_websocket)

    assert match is not None
    assert match.endpoint.id == endpoint


@pytest.mark.parametrize(
    ("path", "upstream"),
    [
        ("/cartesia/tts/bytes", "/tts/bytes"),
        ("/cartesia//tts/bytes", "/tts/bytes"),
        ("/cartesia/tts/bytes/", "/tts/bytes/"),
        ("/cartesia/@eu/tts/bytes", "/tts/bytes"),
        ("/cartesia/@eu//tts/bytes", "/tts/bytes"),
        ("/cartesia/tts/byt%65s", "/tts/byt%65s"),
        ("/cartesia/TTS/Bytes", "/TTS/Bytes"),
    ],
)
def test_a_judged_path_stays_judged_in_every_spelling_and_goes_up_as_it_came(path: str, upstream: str) -> None:
    match = registry.match("POST", path.encode(), False)

    assert match is not None
    assert match.endpoint.id == "tts.bytes"
    assert match.path == upstream.encode()


@pytest.mark.parametrize(
    "path",
    [
        "/cartesia/../kokoro/invocations",
        "/cartesia/tts/../voices",
        "/cartesia/%2e%2e/voices",
        "/cartesia/%2E/voices",
        "/cartesia/tts%2fbytes",
        "/cartesia/tts%5cbytes",
        "/cartesia/tts\\bytes",
        "/cartesia/tts//bytes",
        "/cartesia/tts/bytes//",
        "/cartesia/tts/bytes;v=1",
        "/cartesia/tts/bytes%3bv=1",
        "/cartesia/tts/bytes%00",
        "/cartesia/tts/bytes%0d%0aX:1",
        "/cartesia/voices/%252e%252e",
        "/cartesia/voices/%c0%ae%c0%ae",
        "/cartesia/voices/%zz",
        "/cartesia/voices/%",
        "/cartesia/voices/a b",
        "/cartesia/voices/a#b",
        "/cartesia/voices/\xe9",
        "/cartesia/@/tts/bytes",
        "/cartesia/@EU/tts/bytes",
        "/cartesia/@e%75/tts/bytes",
    ],
)
def test_a_path_that_can_be_read_in_two_ways_is_not_matched(path: str) -> None:
    assert registry.match("POST", path.encode("latin-1"), False) is None


def test_a_pin_names_the_account() -> None:
    match = registry.match("POST", b"/cartesia/@cartesia-eu/tts/bytes", False)

    assert match is not None
    assert match.pin == "cartesia-eu"


@pytest.mark.parametrize(
    ("path", "host", "upstream"),
    [
        (b"/stt/websocket", b"cartesia.gateway.test", b"/stt/websocket"),
        (b"//stt/websocket", b"cartesia.gateway.test", b"/stt/websocket"),
        (b"/@eu/stt/websocket", b"cartesia.gateway.test", b"/stt/websocket"),
        (b"/cartesia/stt/websocket", b"cartesia.gateway.test", b"/stt/websocket"),
    ],
)
def test_a_host_name_of_its_own_serves_clients_that_drop_path_prefixes(path: bytes, host: bytes, upstream: bytes) -> None:
    match = registry.match("GET", path, True, host, {b"cartesia.gateway.test": "cartesia"})

    assert match is not None
    assert (match.endpoint.id, match.path) == ("stt.websocket", upstream)


@pytest.mark.parametrize("path", [b"/livez", b"/cartesian/tts", b"/%63artesia/tts/bytes", b"/Cartesia/tts/bytes", b"/", b""])
def test_paths_outside_the_mounts_are_the_gateways_own(path: bytes) -> None:
    assert not registry.is_mount(path, b"gateway.test")
    assert registry.match("GET", path, False, b"gateway.test") is None


@pytest.mark.parametrize("path", [b"/cartesia", b"/cartesia/", b"/kokoro/ping", b"/cartesia/../x"])
def test_everything_under_a_mount_is_the_providers(path: bytes) -> None:
    assert registry.is_mount(path, b"gateway.test")


def test_head_is_judged_like_get_and_options_without_a_body() -> None:
    head = registry.match("HEAD", b"/cartesia/voices", False)
    options = registry.match("OPTIONS", b"/cartesia/tts/bytes", False)

    assert head is not None
    assert head.endpoint.id == "voices.list"
    assert options is not None
    assert (options.endpoint.id, options.endpoint.operation, options.endpoint.judged) == ("tts.bytes.options", "tts", None)


def test_endpoint_ids_name_one_set_of_judged_keys() -> None:
    keys: dict[str, set[tuple[str | None, ...]]] = {}
    for profile in registry.PROFILES.values():
        for endpoint in profile.endpoints:
            keys.setdefault(endpoint.id, set()).add((endpoint.model_key, endpoint.text_key, endpoint.voice_key))

    assert {endpoint_id for endpoint_id, found in keys.items() if len(found) > 1} == set()
