"""The upstream stand-in and the peers of the kit, started as the kit does, with TLS on either side if asked for.

nginx checks nothing, Envoy validates the caller's JWT; both swap the credential. With TLS towards the upstream, an nginx on
the other core takes it off in front of the stand-in, for every target alike; for a load that speaks no TLS, another one there
puts it on (`tls_put_on`). Used by the benchmarks beside the kit's own.
"""

import datetime
import ipaddress
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from glottis.certificates import Certificates
from tests.bench.gateway.side_by_side import BENCH_PYTHON, GATEWAY_CORE, KIT, OTHER_CORE

UPSTREAM_PORT, TLS_UPSTREAM_PORT = 9003, 9443
DAY = datetime.timedelta(days=1)
_WRITE = (
    "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import peers, side_by_side as kit, json;"
    "folder = pathlib.Path(sys.argv[2]); jwks = pathlib.Path(sys.argv[3], 'jwks.json').read_text();"
    "print(json.dumps([peers.NGINX_PORT, peers.ENVOY_PORT, kit.envoy_binary(),"
    "peers.nginx(str(folder / 'nginx.pid'), str(folder / 'nginx.err')),"
    "json.loads(peers.envoy(jwks, kit.ISSUER, kit.AUDIENCE))]))"
)
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
_PUT_ON = """worker_processes 1; pid {folder}/put_on.pid; error_log {folder}/put_on.err;
events {{ worker_connections 20000; }}
http {{
  access_log off;
  map $http_upgrade $up_connection {{ default upgrade; '' ''; }}
  proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 900s;
  proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $up_connection;
  proxy_ssl_verify on; proxy_ssl_trusted_certificate {authority}; proxy_ssl_name localhost;
  {servers}
}}
"""
_TLS_UPSTREAM = """worker_processes 1; pid {folder}/front.pid; error_log {folder}/front.err;
events {{ worker_connections 20000; }}
http {{
  access_log off; keepalive_requests 10000000;
  upstream up {{ server 127.0.0.1:{port}; keepalive 256; keepalive_requests 10000000; }}
  map $http_upgrade $up_connection {{ default upgrade; '' ''; }}
  server {{
    listen 127.0.0.1:{tls_port} ssl backlog=4096; ssl_certificate {certificate}; ssl_certificate_key {key};
    location / {{
      proxy_pass http://up; proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 900s;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $up_connection;
    }}
  }}
}}
"""


def plain_certificates(folder: Path) -> Certificates:
    """Return an authority and a P-256 certificate for localhost: without constraints, which Envoy's TLS library cannot read."""
    now = datetime.datetime.now(datetime.UTC)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])

    def signed(name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number(), now, now + DAY)
        made = builder.add_extension(extension, critical=False).sign(authority_key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)

    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    made.authority.write_bytes(signed(issuer, authority_key, x509.BasicConstraints(ca=True, path_length=None)))
    made.server.write_bytes(signed(subject, server_key, names))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    made.server_key.write_bytes(server_key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return made


@contextmanager
def peers(
    folder: Path, keys: Path, certificates: Certificates | None = None, *, to_clients: bool = False, to_upstream: bool = False
) -> Iterator[dict[str, int]]:
    """Start the upstream, nginx and, if it is installed, Envoy; give each peer's port. keys: with the callers' key set."""
    said = subprocess.run([BENCH_PYTHON, "-c", _WRITE, KIT, folder, keys], check=True, capture_output=True, text=True)
    nginx_port, envoy_port, binary, nginx, envoy = json.loads(said.stdout)
    commands: list[tuple[int, list[Any]]] = [(OTHER_CORE, [folder / "wsload", "serve", str(UPSTREAM_PORT)])]
    if certificates is not None and to_clients:
        pair = f"ssl_certificate {certificates.server}; ssl_certificate_key {certificates.server_key};"
        nginx = nginx.replace(
            f"listen 127.0.0.1:{nginx_port} backlog=4096;", f"listen 127.0.0.1:{nginx_port} ssl backlog=4096; {pair}"
        )
        _envoy_to_clients(envoy, certificates)
    if certificates is not None and to_upstream:
        nginx = nginx.replace(f"server 127.0.0.1:{UPSTREAM_PORT};", f"server 127.0.0.1:{TLS_UPSTREAM_PORT};")
        verified = f"proxy_ssl_verify on; proxy_ssl_trusted_certificate {certificates.authority}; proxy_ssl_name localhost;"
        nginx = nginx.replace("proxy_pass http://up/;", f"proxy_pass https://up/; proxy_ssl_server_name on; {verified}")
        _envoy_to_upstream(envoy, certificates)
        front = {"folder": folder, "port": UPSTREAM_PORT, "tls_port": TLS_UPSTREAM_PORT}
        pair_of = {"certificate": certificates.server, "key": certificates.server_key}
        (folder / "front.conf").write_text(_TLS_UPSTREAM.format(**front, **pair_of))
        commands.append((OTHER_CORE, ["nginx", "-c", folder / "front.conf", "-g", "daemon off;"]))
    (folder / "nginx.conf").write_text(nginx)
    (folder / "envoy.json").write_text(json.dumps(envoy))
    subprocess.run(["gcc", "-O2", "-o", folder / "wsload", KIT / "wsload.c"], check=True)
    commands.append((GATEWAY_CORE, ["nginx", "-c", folder / "nginx.conf", "-g", "daemon off;"]))
    ports = {"nginx": nginx_port}
    if binary is not None:
        flags = ["--concurrency", "1", "--log-level", "error", "--base-id", "7"]
        commands.append((GATEWAY_CORE, [binary, "-c", folder / "envoy.json", *flags]))
        ports["envoy"] = envoy_port
    with ExitStack() as stack:
        for core, command in commands:
            process = subprocess.Popen(["taskset", "-c", str(core), *command])
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
        time.sleep(3)
        yield ports


@contextmanager
def tls_put_on(folder: Path, targets: dict[str, int], certificates: Certificates) -> Iterator[dict[str, int]]:
    """Give for each target's TLS port a plain one beside it: what comes there goes on over TLS, from the other core."""
    plain = {name: port + 10_000 for name, port in targets.items()}
    servers = "\n  ".join(
        f"server {{ listen 127.0.0.1:{plain[name]} backlog=4096; location / {{ proxy_pass https://127.0.0.1:{port}; }} }}"
        for name, port in targets.items()
    )
    (folder / "put_on.conf").write_text(_PUT_ON.format(folder=folder, authority=certificates.authority, servers=servers))
    command = ["taskset", "-c", str(OTHER_CORE), "nginx", "-c", str(folder / "put_on.conf"), "-g", "daemon off;"]
    with subprocess.Popen(command) as process:
        time.sleep(1)
        try:
            yield plain
        finally:
            process.terminate()


def _envoy_to_clients(envoy: Any, certificates: Certificates) -> None:
    pair = {
        "certificate_chain": {"filename": str(certificates.server)},
        "private_key": {"filename": str(certificates.server_key)},
    }
    envoy["static_resources"]["listeners"][0]["filter_chains"][0]["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": _TLS + "DownstreamTlsContext", "common_tls_context": {"tls_certificates": [pair]}},
    }


def _envoy_to_upstream(envoy: Any, certificates: Certificates) -> None:
    cluster = envoy["static_resources"]["clusters"][0]
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"]["port_value"] = TLS_UPSTREAM_PORT
    trusted = {"trusted_ca": {"filename": str(certificates.authority)}}
    cluster["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": _TLS + "UpstreamTlsContext",
            "sni": "localhost",
            "common_tls_context": {"validation_context": trusted},
        },
    }
