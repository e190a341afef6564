"""TLS of the HTTP front: files to a context, and a certificate that can be replaced while it serves."""

from __future__ import annotations

import ssl
from pathlib import Path

from iop_fast.config.schema import ServerTls


class HttpIdentity:
    """The front's certificate. Connections that are open keep the one they began with."""

    def __init__(self, tls: ServerTls) -> None:
        """Read the files; raises OSError (an SSLError for files that are no certificate and key)."""
        self._tls = tls
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        if tls.client_ca_file is not None:
            self.context.load_verify_locations(tls.client_ca_file)
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._stamps = self._read_stamps()
        self.context.load_cert_chain(tls.cert_file, tls.key_file)

    def reload(self) -> bool:
        """Read certificate and key again if one of them changed; True when it did.

        Raises OSError and keeps what it has. A changed client authority takes a restart: a context only adds to its
        authorities.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        # Tried on a context of its own first: a failing load would leave this one with half of a pair.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._tls.cert_file, self._tls.key_file)
        self.context.load_cert_chain(self._tls.cert_file, self._tls.key_file)
        self._stamps = stamps
        return True

    def _read_stamps(self) -> tuple[tuple[int, int, int], ...]:
        found = (Path(name).stat() for name in (self._tls.cert_file, self._tls.key_file))
        return tuple((entry.st_mtime_ns, entry.st_size, entry.st_ino) for entry in found)
