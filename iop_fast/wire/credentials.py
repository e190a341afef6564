"""TLS of the link: files to gRPC credentials, and a server's certificate that can be replaced while it serves.

gRPC asks for a replaced certificate at each handshake, from a thread of its own. What it calls hands out bytes that
were prepared on the event loop and touches nothing else. Sessions that are open keep the certificate they began with.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import grpc

FilePath = str | os.PathLike[str]


class ServerIdentity:
    """A server's certificate chain and key in PEM, and `client_ca`, which clients must be signed by if it is given."""

    def __init__(self, cert_file: FilePath, key_file: FilePath, client_ca_file: FilePath | None = None) -> None:
        """Read the files; raises OSError."""
        client_ca = Path(client_ca_file) if client_ca_file is not None else None
        self._files = (Path(cert_file), Path(key_file), client_ca)
        self._needs_client = client_ca_file is not None
        self._stamps = self._read_stamps()
        self._configuration = self._read()
        self._replacement: grpc.ServerCertificateConfiguration | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return what the server is bound with."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._take_replacement,  # type: ignore[arg-type]  # the stub forgets that None keeps the one in use
            require_client_authentication=self._needs_client,
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
        cert, key, client_ca = self._files
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), cert.read_bytes())], client_ca.read_bytes() if client_ca is not None else None
        )

    def _read_stamps(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file is written or replaced, by rename or by a link to another directory."""
        found = (path.stat() for path in self._files if path is not None)
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in found)


def channel_credentials(
    ca_file: FilePath | None = None, cert_file: FilePath | None = None, key_file: FilePath | None = None
) -> grpc.ChannelCredentials:
    """Return a client's credentials; without `ca_file` the operating system's authorities. Raises OSError."""
    return grpc.ssl_channel_credentials(
        root_certificates=system_authorities() if ca_file is None else Path(ca_file).read_bytes(),
        private_key=None if key_file is None else Path(key_file).read_bytes(),
        certificate_chain=None if cert_file is None else Path(cert_file).read_bytes(),
    )


def system_authorities() -> bytes | None:
    """Return the operating system's bundle in PEM; None where there is none: gRPC then takes the one it ships."""
    bundle = ssl.get_default_verify_paths().cafile
    return Path(bundle).read_bytes() if bundle is not None else None
