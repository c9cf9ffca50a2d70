"""The judged fields of a form, read as it streams by."""

import pytest

from policy.facts import Facts, Unjudgeable
from policy.form import FIELD_LIMIT, PART_HEAD_LIMIT, FormReader, form_boundary
from policy.providers import cartesia, registry
from policy.providers.profile import Endpoint

TYPE = b"multipart/form-data; boundary=b"


def endpoint(endpoint_id: str) -> Endpoint:
    found = registry.endpoint_named(cartesia.PROFILE, endpoint_id)
    assert found is not None
    return found


STT = endpoint("stt.batch")
INFILL = endpoint("infill.bytes")
CHANGER = endpoint("voice_changer.bytes")


def part(name: str, value: str = "", extra: str = "", headers: str = "") -> str:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n{headers}\r\n{value}\r\n'


MODEL = part("model", "ink-whisper")
FILE = part("file", "RIFF\r\n--not\r\n\0\xff", '; filename="a.wav"', "Content-Type: audio/wav\r\n")
END = "--b--\r\n"


def read(body: str, on: Endpoint = STT, step: int = 1 << 30) -> Facts | Unjudgeable | None:
    reader = FormReader(TYPE, on)
    told: Facts | Unjudgeable | None = None
    data = body.encode("latin-1")
    for at in range(0, len(data), step):
        news = reader.feed(data[at : at + step])
        if isinstance(news, Unjudgeable):
            return news
        assert news is None or told is None, "facts are told once"
        told = told or news
    assert reader.is_complete
    return told


def reason(body: str, on: Endpoint = STT) -> str:
    reader = FormReader(TYPE, on)
    news = reader.feed(body.encode("latin-1"))
    assert isinstance(news, Unjudgeable), news
    return news.reason


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1 << 30])
@pytest.mark.parametrize("body", [MODEL + FILE + END, FILE + MODEL + END, FILE + MODEL + FILE + "--b--"])
def test_the_model_is_found_before_and_after_the_file_however_the_body_is_cut(body: str, step: int) -> None:
    found = read(body, STT, step)

    assert isinstance(found, Facts)
    assert found.model == "ink-whisper"


def test_the_model_is_told_before_the_file_came() -> None:
    reader = FormReader(TYPE, STT)

    found = reader.feed((MODEL + "--b").encode())
    assert isinstance(found, Facts)
    assert not reader.is_complete
    assert reader.feed(b"\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n" + b"x" * 100_000) is None


def test_a_large_file_is_not_kept() -> None:
    reader = FormReader(TYPE, STT)
    reader.feed(b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n')
    for _ in range(100):
        reader.feed(b"\r\n--" * 10_000)

    assert len(reader._carry) < 16


def test_infill_says_text_and_voice() -> None:
    body = part("model_id", "sonic-3") + part("transcript", 'a <break time="1s"/>') + part("voice_id", "v1") + FILE + END
    found = read(body, INFILL)

    assert isinstance(found, Facts)
    assert (found.model, found.voice, found.transcript, found.characters, found.speaks) == (
        "sonic-3",
        "v1",
        'a <break time="1s"/>',
        3,
        True,
    )


def test_the_voice_changer_says_its_voice() -> None:
    found = read(part("voice[id]", "v1") + FILE + END, CHANGER)
    embedded = read(part("voice[embedding]", "0.1") + part("voice[id]", "v1") + END, CHANGER)

    assert isinstance(found, Facts)
    assert (found.voice, found.is_voice_embedded) == ("v1", False)
    assert isinstance(embedded, Facts)
    assert embedded.is_voice_embedded


def test_a_form_without_the_field_says_nothing() -> None:
    found = read(FILE + END)

    assert isinstance(found, Facts)
    assert found.model is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (MODEL + MODEL + END, "form_field_twice"),
        (MODEL + FILE + part("model", "other") + END, "form_field_twice"),
        (part("model", "x" * (FIELD_LIMIT + 1)) + END, "form_field_too_large"),
        (part("model", "\xff") + END, "form_malformed"),
        (part("model", "ink", '; filename="m"') + END, "form_malformed"),
        (part("model", "aW5r", "", "Content-Transfer-Encoding: base64\r\n") + END, "form_malformed"),
        (part("Model", "ink") + END, "form_malformed"),
        (part("%6dodel", "ink") + END, "form_malformed"),
        (part(" model", "ink") + END, "form_malformed"),
        (part("x", "", '; name="model"') + END, "form_malformed"),
        (part("x", "", "; name*=utf-8''model") + END, "form_malformed"),
        (part("x", "", '; filename="a\\"; name=\\"model"') + END, "form_malformed"),
        (part("x", "", "; filename=a b") + END, "form_malformed"),
        ("preamble\r\n" + MODEL + END, "form_malformed"),
        ("\r\n" + MODEL + END, "form_malformed"),
        (MODEL.replace("\r\n", "\n") + END, "form_malformed"),
        (MODEL + "--b-x", "form_malformed"),
        (MODEL + "--b \r\n", "form_malformed"),
        (MODEL + END + "--b\r\nmore", "form_malformed"),
        (MODEL + END + "x", "form_malformed"),
        ("--b\r\n\r\nink\r\n" + END, "form_malformed"),
        ("--b\r\nContent-Type: text/plain\r\n\r\nink\r\n" + END, "form_malformed"),
        ('--b\r\nContent-Disposition: form-data;\r\n name="model"\r\n\r\nink\r\n' + END, "form_malformed"),
        ('--b\r\nContent-Disposition: attachment; name="model"\r\n\r\nink\r\n' + END, "form_malformed"),
        (
            '--b\r\nContent-Disposition: form-data; name="x"\r\nContent-Disposition: form-data; name="model"\r\n\r\nink\r\n'
            + END,
            "form_malformed",
        ),
        ("--b\r\nX: " + "x" * PART_HEAD_LIMIT + "\r\n\r\n", "form_malformed"),
        ("--b\r\nX: " + "x" * (PART_HEAD_LIMIT + 10), "form_malformed"),
        ("".join(part(f"f{n}") for n in range(1001)) + END, "form_malformed"),
    ],
)
def test_what_parsers_read_differently_is_refused(body: str, expected: str) -> None:
    assert reason(body) == expected


def test_another_way_to_say_the_voice_after_the_answer_is_refused() -> None:
    reader = FormReader(TYPE, CHANGER)

    assert isinstance(reader.feed(part("voice[id]", "v1").encode() + b"--b"), Facts)
    assert reader.feed(b'\r\nContent-Disposition: form-data; name="voice[mode]"\r\n\r\n') == Unjudgeable("form_field_twice")


def test_a_file_name_may_hold_what_file_names_hold() -> None:
    body = part("file", "x", "; filename=\"C:\\dir\\a; b.wav\"; filename*=utf-8''%e2%82%ac.wav") + MODEL + END
    found = read(body)

    assert isinstance(found, Facts)
    assert found.model == "ink-whisper"


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data;charset=utf-8; Boundary="a:b"', b"a:b"),
        (b"multipart/form-data; boundary=----formdata-undici-089662222121", b"----formdata-undici-089662222121"),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=", None),
        (b"multipart/form-data; boundary=a; boundary=b", None),
        (b"multipart/form-data; boundary=" + b"x" * 71, None),
        (b'multipart/form-data; boundary="a b"', None),
        (b"multipart/mixed; boundary=a", None),
        (b"application/json; boundary=a", None),
        (b"", None),
        (None, None),
    ],
)
def test_the_boundary_is_read_from_the_content_type(content_type: bytes | None, boundary: bytes | None) -> None:
    assert form_boundary(content_type) == boundary


def test_a_body_of_another_type_is_refused_at_once() -> None:
    assert FormReader(b"text/plain", STT).feed(b"") == Unjudgeable("content_type_unsupported")
