"""What grpcio is given for an identity and for an authority.

It asks for a replaced certificate at each handshake, from a thread of its own. What it calls hands out bytes that were
read on the event loop and touches nothing else.
"""

from __future__ import annotations

import grpc

from iop_fast.wire.credentials import ServerIdentity, ServerPem, Trust


def server_credentials(identity: ServerIdentity) -> grpc.ServerCredentials:
    """Return what a server is bound with; it follows the identity's reloads."""
    first = identity.pem

    def replacement() -> grpc.ServerCertificateConfiguration | None:
        pem = identity.pem  # gRPC's thread
        return None if pem is first else _configuration(pem)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first),
        replacement,  # type: ignore[arg-type]  # the stub forgets that None keeps the one in use
        require_client_authentication=identity.needs_client,
    )


def _configuration(pem: ServerPem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.chain)], pem.client_ca)


def channel_credentials(trust: Trust) -> grpc.ChannelCredentials:
    """Return a client's credentials."""
    return grpc.ssl_channel_credentials(
        root_certificates=trust.ca, private_key=trust.key, certificate_chain=trust.chain
    )
