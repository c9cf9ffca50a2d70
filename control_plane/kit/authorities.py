"""Certificate authorities that an administrator names, checked when they are saved and not at the first connection.

They are loaded as gateway and exporter load them, so that what one side takes the other takes.
"""

import ssl

from control_plane.kit.problems import invalid
from policy.workspace_file import authorities_problem


def check_authorities(pem: bytes | None) -> None:
    """Raise Problem invalid_request for field `ca` if these are no PEM certificates; None is no certificates at all."""
    if pem is None:
        return
    if (sentence := authorities_problem(pem)) is not None:
        raise invalid("ca", sentence)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise invalid("ca", "Those certificates cannot be read.") from error
