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
        """Read the files again if one of them changed; True when they are in use.

        Raises OSError, once for each change, and keeps what it has: a pair that is being replaced file by file is not
        taken before it is whole.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        self._replacement = self._read()
        return True

    def _take_replacement(self) -> grpc.ServerCertificateConfiguration | None:
        # gRPC's thread. None keeps the certificate in use; giving the same one twice is harmless.
        return self._replacement

    def _read(self) -> grpc.ServerCertificateConfiguration:
        cert, key, client_ca = self._files
        check_pair(cert, key)
        if client_ca is not None:
            check_authorities(client_ca)
        return grpc.ssl_server_certificate_configuration(
            [(key.read_bytes(), cert.read_bytes())], client_ca.read_bytes() if client_ca is not None else None
        )

    def _read_stamps(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when a file is written or replaced, by rename or by a link to another directory."""
        return tuple(_stamp(path) for path in self._files if path is not None)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return (0, 0, 0)  # reading it says what is wrong
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def check_pair(cert_file: Path, key_file: Path) -> None:
    """Raise OSError unless the files hold a certificate chain and its key, unencrypted; gRPC finds out too late."""
    for path in (cert_file, key_file):
        path.open("rb").close()  # names the file that cannot be read, which OpenSSL does not
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, password="")
    except ssl.SSLError as error:
        reason = error.reason or "an encrypted key is not supported"
        raise OSError(f"{cert_file} and {key_file} are no certificate and key: {reason.lower()}") from None


def check_authorities(ca_file: Path) -> None:
    """Raise OSError unless the file holds certificates; gRPC would then refuse every client without a word."""
    ca_file.open("rb").close()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(ca_file)
    except ssl.SSLError as error:
        raise OSError(f"{ca_file} holds no certificates: {(error.reason or 'not PEM').lower()}") from None


def channel_credentials(
    ca_file: FilePath | None = None, cert_file: FilePath | None = None, key_file: FilePath | None = None
) -> grpc.ChannelCredentials:
    """Return a client's credentials; without `ca_file` the operating system's authorities. Raises OSError."""
    if cert_file is not None and key_file is not None:
        check_pair(Path(cert_file), Path(key_file))
    if ca_file is not None:
        check_authorities(Path(ca_file))
    return grpc.ssl_channel_credentials(
        root_certificates=system_authorities() if ca_file is None else Path(ca_file).read_bytes(),
        private_key=None if key_file is None else Path(key_file).read_bytes(),
        certificate_chain=None if cert_file is None else Path(cert_file).read_bytes(),
    )


def system_authorities() -> bytes | None:
    """Return the operating system's bundle in PEM; None where there is none: gRPC then takes the one it ships."""
    bundle = ssl.get_default_verify_paths().cafile
    return Path(bundle).read_bytes() if bundle is not None else None
