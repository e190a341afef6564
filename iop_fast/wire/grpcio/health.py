"""Check and Watch as grpcio's handlers."""

from __future__ import annotations

import grpc
from grpc import aio

from iop_fast.wire.health import NO_SERVICE, NO_WATCH, SERVICE, SERVICE_UNKNOWN, Health


def health_handler(health: Health) -> grpc.GenericRpcHandler[bytes, bytes]:
    """Return what a server registers."""

    async def check(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        status = health.status(request)
        if status is SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, NO_SERVICE)
        return status

    async def watch(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> None:
        if not health.has_room:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, NO_WATCH)
        await health.watch(request, context.write)

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {"Check": grpc.unary_unary_rpc_method_handler(check), "Watch": grpc.unary_stream_rpc_method_handler(watch)},
    )
