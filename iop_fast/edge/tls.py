"""Certificates of the Edge's listeners: checked before they are used, and taken over when their files are replaced.

A pair of files that does not load is never handed on: at start it is why the Edge does not start, later it is said once
and the pair in use stays. Between the replacement of one file and of the other such a pair is normal. Connections that
are open keep the certificate they began with. Changed client authorities are taken over in the same way.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from iop_fast import logs
from iop_fast.config.schema import ServerTls

log = logs.get(__name__)

Stamps = tuple[tuple[int, int, int], ...] | None


def http_context(tls: ServerTls) -> ssl.SSLContext:
    """Build the HTTP front's context; raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if tls.client_ca_file is not None:
        context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def check_pair(tls: ServerTls) -> None:
    """Load certificate and key where it changes nothing; raises OSError (an SSLError for what is no such pair)."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert_file, tls.key_file)


class CertificateWatch:
    """Looks for replaced files when it is told to, and calls `take_over` for a pair that loads."""

    __slots__ = ("_files", "_section", "_stamps", "_take_over", "_tls")

    def __init__(self, section: str, tls: ServerTls, take_over: Callable[[], object]) -> None:
        """`section` names the listener in the log; `take_over` raises OSError for what it cannot use."""
        self._section = section
        self._tls = tls
        self._take_over = take_over
        self._files = [tls.cert_file, tls.key_file]
        if tls.client_ca_file is not None:
            self._files.append(tls.client_ca_file)
        self._stamps = read_stamps(self._files)

    def look(self, now_ns: int) -> None:
        """Look once; each state of the files is judged once. The argument is the ticker's."""
        stamps = read_stamps(self._files)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            check_pair(self._tls)
            self._take_over()
        except OSError as error:
            log.error("certificate_kept", section=self._section, cert=self._tls.cert_file, error=error)
        else:
            log.info("certificate_taken_over", section=self._section, cert=self._tls.cert_file)


def read_stamps(files: Sequence[str]) -> Stamps:
    """What changes when a file is written or replaced; None while one of them is not there."""
    try:
        found = [Path(name).stat() for name in files]
    except OSError:
        return None
    return tuple((entry.st_mtime_ns, entry.st_size, entry.st_ino) for entry in found)
