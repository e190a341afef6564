"""The link between an Edge and its Nodes: protocol, codec, batching and gRPC."""

from iop_fast.wire import grpc_env as grpc_env  # before anything here imports grpc
