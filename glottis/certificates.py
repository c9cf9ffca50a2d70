"""TLS for loopback: a certificate authority of this installation's own, and the server certificate that it signs.

The SDKs dial text-to-speech sockets with `wss://` whatever the base URL, so `glottis up` serves HTTPS. The authority is
never installed in a system store: a client names its file (SSL_CERT_FILE). Its name constraints let it vouch for
loopback only, so that a stolen key is worth nothing elsewhere. Why it is so: docs/adr/0013.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from glottis.errors import SetupError
from glottis.keys import write_private

_AUTHORITY_DAYS: Final = 3650
_SERVER_DAYS: Final = 397
# Renewed at a start when less than this is left; a server that runs without a restart for a year is the exception.
_RENEWAL_DAYS: Final = 60
# A clock that was set back a little, in a virtual machine, must not see a certificate from the future.
_BACKDATED: Final = datetime.timedelta(hours=1)

_HOST: Final = "localhost"
_ADDRESSES: Final = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))


@dataclass(frozen=True, slots=True)
class Certificates:
    """authority: what clients trust; server, server_key: what the gateway's HTTPS listener presents (PEM files)."""

    authority: Path
    server: Path
    server_key: Path


def ensure_certificates(data_folder: Path, now: datetime.datetime) -> Certificates:
    """Return the installation's certificates, made or renewed if needed.

    now: aware. Raises SetupError if the folder cannot be written.
    """
    folder = data_folder / "certificates"
    found = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    authority_key_file = folder / "authority.key"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not authority_key_file.exists() or _expires_soon(found.authority, now):
            key = ec.generate_private_key(ec.SECP256R1())
            write_private(found.authority, _pem(_authority_certificate(key, now)))
            write_private(authority_key_file, _key_pem(key))
            found.server.unlink(missing_ok=True)
        if not found.server_key.exists() or _expires_soon(found.server, now):
            authority_key = serialization.load_pem_private_key(authority_key_file.read_bytes(), password=None)
            authority = x509.load_pem_x509_certificate(found.authority.read_bytes())
            if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
                raise SetupError(f"{authority_key_file} is no key of ours.", f"Delete {folder}; it is made anew.")
            key = ec.generate_private_key(ec.SECP256R1())
            write_private(found.server_key, _key_pem(key))
            write_private(found.server, _pem(_server_certificate(key, authority, authority_key, now)) + _pem(authority))
    except ValueError as error:
        raise SetupError(f"A file in {folder} is damaged.", "Delete that folder; it is made anew.") from error
    except OSError as fault:
        raise SetupError(f"Cannot write {folder}: {fault.strerror}.", "Free space there or name another --data-dir.") from fault
    return found


def _expires_soon(file: Path, now: datetime.datetime) -> bool:
    if not file.exists():
        return True
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    return certificate.not_valid_after_utc - now < datetime.timedelta(days=_RENEWAL_DAYS)


def _authority_certificate(key: ec.EllipticCurvePrivateKey, now: datetime.datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Glottis on this machine")])
    only_loopback: list[x509.GeneralName] = [
        x509.DNSName(_HOST),
        *(x509.IPAddress(ipaddress.ip_network(address)) for address in _ADDRESSES),
    ]
    return (
        _builder(name, name, key, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(permitted_subtrees=only_loopback, excluded_subtrees=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _HOST)])
    names = [x509.DNSName(_HOST), *(x509.IPAddress(address) for address in _ADDRESSES)]
    return (
        _builder(name, authority.subject, key, now, _SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
