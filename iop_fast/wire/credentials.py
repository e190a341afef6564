"""TLS of the link: files to what either transport is given, and a server's certificate that can be replaced while it
serves.

An identity and an authority are read on the event loop and held whole, as PEM for grpcio and as an `ssl.SSLContext` for
the built-in transport. Each handshake takes what is held at that moment; sessions that are open keep the certificate
they began with.

Both sides demand TLS 1.2 or newer and HTTP/2 by ALPN. Sessions are not resumed: a link is long, and a ticket would let
in a client whose authority is not trusted any more.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any, NamedTuple

FilePath = str | os.PathLike[str]

ALPN = "h2"
# What is left of TLS 1.2 by RFC 9113, section 9.2.2; TLS 1.3 has suites of its own.
TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class ServerPem(NamedTuple):
    """A server's certificate chain and key, and the authorities of its clients."""

    chain: bytes
    key: bytes
    client_ca: bytes | None


class ServerIdentity:
    """A server's certificate chain and key in PEM, and `client_ca`, which clients must be signed by if it is given.

    `pem` and `context` are replaced as a whole by `reload`; other threads may read them.
    """

    def __init__(self, cert_file: FilePath, key_file: FilePath, client_ca_file: FilePath | None = None) -> None:
        """Read the files; raises OSError."""
        client_ca = Path(client_ca_file) if client_ca_file is not None else None
        self._files = (Path(cert_file), Path(key_file), client_ca)
        self.needs_client = client_ca_file is not None
        self._stamps = self._read_stamps()
        self.pem, self.context = self._read()

    def reload(self) -> bool:
        """Read the files again if one of them changed; True when they are in use.

        Raises OSError, once for each change, and keeps what it has: a pair that is being replaced file by file is not
        taken before it is whole.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self.pem, self.context = self._read()
        return True

    def _read(self) -> tuple[ServerPem, ssl.SSLContext]:
        cert, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        harden(context)
        load_pair(context, cert, key)
        if client_ca is not None:
            load_authorities(context, client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        authorities = client_ca.read_bytes() if client_ca is not None else None
        return ServerPem(cert.read_bytes(), key.read_bytes(), authorities), context

    def _read_stamps(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file is written or replaced, by rename or by a link to another directory."""
        return tuple(_stamp(path) for path in self._files if path is not None)


class Trust:
    """Whom a client trusts, and what it shows: `ca_file`, without one the operating system's authorities, and a
    certificate with its key."""

    def __init__(
        self, ca_file: FilePath | None = None, cert_file: FilePath | None = None, key_file: FilePath | None = None
    ) -> None:
        """Read the files; raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the certificate and its names
        harden(context)
        if ca_file is None:
            context.load_default_certs()
        else:
            load_authorities(context, Path(ca_file))
        if cert_file is not None and key_file is not None:
            load_pair(context, Path(cert_file), Path(key_file))
        self.context = context
        self.ca = system_authorities() if ca_file is None else Path(ca_file).read_bytes()
        self.chain = None if cert_file is None else Path(cert_file).read_bytes()
        self.key = None if key_file is None else Path(key_file).read_bytes()


def harden(context: ssl.SSLContext) -> None:
    """Set what both sides of a link demand of TLS."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    # An authority need not be a root: a bundle may hold the one that signed, or the peer's own certificate.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_ciphers(TLS12_CIPHERS)
    context.set_alpn_protocols([ALPN])


def load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Take a certificate chain and its key, unencrypted, into a context; raises OSError."""
    for path in (cert_file, key_file):
        path.open("rb").close()  # names the file that cannot be read, which OpenSSL does not
    try:
        context.load_cert_chain(cert_file, key_file, password="")
    except ssl.SSLError as error:
        reason = error.reason or "an encrypted key is not supported"
        raise OSError(f"{cert_file} and {key_file} are no certificate and key: {reason.lower()}") from None


def load_authorities(context: ssl.SSLContext, ca_file: Path) -> None:
    """Take the certificates of a file as authorities; raises OSError."""
    ca_file.open("rb").close()
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise OSError(f"{ca_file} holds no certificates: {(error.reason or 'not PEM').lower()}") from None


def system_authorities() -> bytes | None:
    """Return the operating system's bundle in PEM; None where there is none: grpcio then takes the one it ships."""
    bundle = ssl.get_default_verify_paths().cafile
    return Path(bundle).read_bytes() if bundle is not None else None


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0, 0)  # reading it says what is wrong
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


# What a certificate says, and why a handshake failed.


def certificate_names(tls: ssl.SSLObject | None) -> frozenset[str]:
    """Return the common name and the alternative names of the certificate that the peer has shown and that was
    checked; none without one."""
    shown = tls.getpeercert() if tls is not None else None
    if not shown:
        return frozenset()
    subject: Any = shown.get("subject", ())
    alternatives: Any = shown.get("subjectAltName", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return frozenset((*names, *(value for _, value in alternatives if isinstance(value, str))))


def plain_tls_error(error: ssl.SSLError) -> str:
    """Say in a few words why a handshake failed or TLS ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message.rstrip(".")
        return text[:1].lower() + text[1:] if not text.startswith("IP ") else text
    reason = (error.reason or "tls failed").lower()
    if reason in ("wrong_version_number", "http_request", "record_layer_failure", "packet_length_too_long"):
        return "it does not speak TLS"
    if "alert" in reason:
        words = reason.partition("alert_")[2].replace("_", " ")
        return f"it refused our handshake: {words}"
    return reason.replace("_", " ")
