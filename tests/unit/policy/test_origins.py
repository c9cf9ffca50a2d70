"""The rules for origins and addresses: what a workspace may name, and what may be dialled after DNS."""

import pytest

from policy.origins import Origin, OriginRefused, checked_origin, is_refused_address, parse_origin


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://api.cartesia.ai", "https://api.cartesia.ai"),
        ("https://API.Cartesia.AI:443/", "https://api.cartesia.ai"),
        ("https://api.cartesia.ai.:8443", "https://api.cartesia.ai:8443"),
        ("https://8.8.8.8", "https://8.8.8.8"),
        ("https://[2606:4700::1111]:444", "https://[2606:4700::1111]:444"),
    ],
)
def test_a_public_https_origin_is_taken_in_its_normal_form(text: str, normal: str) -> None:
    assert checked_origin(text).text == normal


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://api.cartesia.ai", "origin_not_https"),
        ("ftp://api.cartesia.ai", "origin_malformed"),
        ("api.cartesia.ai", "origin_malformed"),
        ("https://", "origin_malformed"),
        ("https://user:secret@api.cartesia.ai", "origin_has_user"),
        ("https://api.cartesia.ai/tts", "origin_has_path"),
        ("https://api.cartesia.ai?", "origin_has_path"),
        ("https://api.cartesia.ai:0", "origin_malformed"),
        ("https://api.cartesia.ai:99999", "origin_malformed"),
        ("https://api.cartesia.ai\n.evil.example", "origin_malformed"),
        ("https://api.cartesia.ai\\@evil.example", "origin_malformed"),
        ("https://127.0.0.1", "origin_private"),
        ("https://127.1", "origin_malformed"),
        ("https://2130706433", "origin_malformed"),
        ("https://0x7f000001", "origin_malformed"),
        ("https://0177.0.0.1", "origin_malformed"),
        ("https://localhost", "origin_private"),
        ("https://db.localhost.", "origin_private"),
        ("https://10.0.0.1", "origin_private"),
        ("https://169.254.169.254", "origin_private"),
        ("https://[::ffff:169.254.169.254]", "origin_private"),
        ("https://[::ffff:a9fe:a9fe]", "origin_private"),
        ("https://[fd00:ec2::254]", "origin_private"),
        ("https://[fe80::1]", "origin_private"),
        ("https://metadata.google.internal", "origin_private"),
        ("https://printer.local", "origin_private"),
    ],
)
def test_an_origin_that_could_reach_inside_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OriginRefused) as refused:
        checked_origin(text)
    assert refused.value.reason == reason


def test_an_origin_that_the_operator_lists_is_taken_and_no_other_port_of_it() -> None:
    assert checked_origin("http://127.0.0.1:8880", ("http://127.0.0.1:8880/",)) == Origin("http", "127.0.0.1", 8880)
    with pytest.raises(OriginRefused):
        checked_origin("http://127.0.0.1:8881", ("http://127.0.0.1:8880",))
    with pytest.raises(OriginRefused):
        checked_origin("https://127.0.0.1:8880", ("http://127.0.0.1:8880", "not an origin"))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a00:1",
        "2002:a9fe:a9fe::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_public_is_not_dialled(address: str) -> None:
    assert is_refused_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_dialled(address: str) -> None:
    assert not is_refused_address(address)


def test_an_origin_says_its_host_and_port() -> None:
    assert parse_origin("https://[2606:4700::1111]") == Origin("https", "2606:4700::1111", 443)
