"""TLS of the link: files to gRPC credentials, and a server's certificate that can be replaced while it serves.

gRPC asks for a replaced certificate at each handshake, from a thread of its own. What it calls hands out bytes that
were prepared on the event loop and touches nothing else. Sessions that are open keep the certificate they began with.
"""

from __future__ import annotations

from pathlib import Path

import grpc


class ServerIdentity:
    """A server's certificate chain and key in PEM, and `client_ca`, which clients must be signed by if it is given."""

    def __init__(self, certificate_file: Path, key_file: Path, client_ca_file: Path | None = None) -> None:
        """Read the files; raises OSError."""
        self._files = (certificate_file, key_file, client_ca_file)
        self._needs_client = client_ca_file is not None
        self._stamps = self._read_stamps()
        self._configuration = self._read()
        self._replacement: grpc.ServerCertificateConfiguration | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return what the server is bound with."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration, self._take_replacement, require_client_authentication=self._needs_client
        )

    def reload(self) -> bool:
        """Read the files again if one of them changed; True when it did. Raises OSError and keeps what it has."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._replacement = self._read()
        self._stamps = stamps
        return True

    def _take_replacement(self) -> grpc.ServerCertificateConfiguration | None:
        # gRPC's thread. None keeps the certificate in use; giving the same one twice is harmless.
        return self._replacement

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, client_ca = self._files
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), certificate.read_bytes())], client_ca.read_bytes() if client_ca is not None else None
        )

    def _read_stamps(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file is written or replaced, by rename or by a link to another directory."""
        found = (path.stat() for path in self._files if path is not None)
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)


def channel_credentials(
    ca_file: Path | None = None, certificate_file: Path | None = None, key_file: Path | None = None
) -> grpc.ChannelCredentials:
    """Return a client's credentials; without `ca_file` the roots that gRPC ships. Raises OSError."""
    return grpc.ssl_channel_credentials(
        root_certificates=ca_file.read_bytes() if ca_file is not None else None,
        private_key=key_file.read_bytes() if key_file is not None else None,
        certificate_chain=certificate_file.read_bytes() if certificate_file is not None else None,
    )
