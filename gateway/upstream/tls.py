"""TLS towards providers: verification always on, a private CA per account, sessions resumed.

asyncio gives no way to name a session to resume, so the context hands the last one to every new connection itself.
Read next: `gateway.upstream.origin`.
"""

import ssl
from typing import Any, Self


class ResumingContext(ssl.SSLContext):
    """A client context for one origin that offers the session of an earlier connection at each handshake."""

    _session: ssl.SSLSession | None = None

    def __new__(cls) -> Self:
        """Make a context for clients, whose minimum is TLS 1.2."""
        context = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:  # Any: the signature is ssl.SSLContext.wrap_bio's
        """Make the TLS state of one connection; called by the event loop's transports."""
        if self._session is not None:
            kwargs.setdefault("session", self._session)
        return super().wrap_bio(*args, **kwargs)

    def remember(self, tls: ssl.SSLObject | None) -> bool:
        """Keep a connection's session for the next handshake, and tell whether there was one to keep.

        TLS 1.3 gives it after the first answer, not before. Asking costs a fifth of a millisecond: Python copies the
        session, certificates and all, by writing it out and reading it back.
        """
        if tls is None or (session := tls.session) is None or not session.has_ticket:
            return False
        self._session = session
        return True


def context_for(ca_pem: bytes | None) -> ResumingContext:
    """Return a verifying context that trusts the account's own CA alone, or the system's. Raises ssl.SSLError for a bad PEM."""
    context = ResumingContext()
    context.set_alpn_protocols(["http/1.1"])
    if ca_pem is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    return context
