"""The certificates of an installation, checked with the same library that clients check them with."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from glottis.certificates import Certificates, ensure_certificates
from glottis.errors import SetupError

NOW = datetime.datetime.now(datetime.UTC)


def shake_hands(certificates: Certificates, server_name: str) -> None:
    """A whole TLS handshake in memory; raises what the client's check raises."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificates.server, certificates.server_key)
    client_context = ssl.create_default_context(cafile=str(certificates.authority))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=server_name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_authority_accepts_the_server_on_loopback(tmp_path: Path, name: str) -> None:
    shake_hands(ensure_certificates(tmp_path, NOW), name)


def test_a_client_does_not_accept_the_server_under_another_name(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(ensure_certificates(tmp_path, NOW), "example.com")


def test_the_authority_cannot_vouch_for_another_host(tmp_path: Path) -> None:
    certificates = ensure_certificates(tmp_path, NOW)
    authority = x509.load_pem_x509_certificate(certificates.authority.read_bytes())
    authority_key = serialization.load_pem_private_key((tmp_path / "certificates" / "authority.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example.com")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - datetime.timedelta(hours=1))
        .not_valid_after(NOW + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("example.com")]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)  # type: ignore[arg-type]  # an EC key as well
        .sign(authority_key, hashes.SHA256())  # type: ignore[arg-type]  # an EC key, as made above
    )
    certificates.server.write_bytes(forged.public_bytes(serialization.Encoding.PEM))
    certificates.server_key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )

    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        shake_hands(certificates, "example.com")


def test_the_server_is_known_by_its_loopback_names_and_no_other(tmp_path: Path) -> None:
    server = x509.load_pem_x509_certificate(ensure_certificates(tmp_path, NOW).server.read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    assert list(names) == [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]


def test_private_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    certificates = ensure_certificates(tmp_path, NOW)

    assert stat.S_IMODE(certificates.server_key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "certificates" / "authority.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(("days", "is_renewed"), [(300, False), (338, True), (500, True)])
def test_the_server_certificate_is_renewed_when_it_nears_its_end(tmp_path: Path, days: int, is_renewed: bool) -> None:
    first = ensure_certificates(tmp_path, NOW)
    authority, server = first.authority.read_bytes(), first.server.read_bytes()

    later = ensure_certificates(tmp_path, NOW + datetime.timedelta(days=days))

    assert (later.server.read_bytes() != server) is is_renewed
    assert later.authority.read_bytes() == authority


def test_a_new_authority_signs_a_new_server_certificate(tmp_path: Path) -> None:
    first = ensure_certificates(tmp_path, NOW - datetime.timedelta(days=3640))
    authority = first.authority.read_bytes()

    second = ensure_certificates(tmp_path, NOW)

    assert second.authority.read_bytes() != authority
    shake_hands(second, "localhost")


def test_a_damaged_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, NOW).server.write_text("nonsense")

    with pytest.raises(SetupError) as refusal:
        ensure_certificates(tmp_path, NOW)

    assert refusal.value.to_do == "Delete that folder; it is made anew."
