"""The keys of both files. Each is declared once; see `fields.setting`."""

from iop_fast.config.schema.cli_profile import CliProfile
from iop_fast.config.schema.common import ClientTls, Log, Observe, ServerTls, Tracing
from iop_fast.config.schema.edge import Admin, Edge, EdgeConfig, Link, ProviderPool
from iop_fast.config.schema.fleet import (
    ADAPTER_OF_TYPE,
    LABELLING_TYPES,
    Adapter,
    Generation,
    GenerationDefaults,
    Model,
    Node,
    NodeRuntime,
    Provider,
    Timeouts,
)
from iop_fast.config.schema.front import HttpLimits, OpenAi, PrincipalToken, ProviderAuth
from iop_fast.config.schema.native import EchoOptions, LlamaCppOptions, NativeModel
from iop_fast.config.schema.node import NodeConfig, NodeEdge, NodeLimits

__all__ = [
    "ADAPTER_OF_TYPE",
    "LABELLING_TYPES",
    "Adapter",
    "Admin",
    "CliProfile",
    "ClientTls",
    "EchoOptions",
    "Edge",
    "EdgeConfig",
    "Generation",
    "GenerationDefaults",
    "HttpLimits",
    "Link",
    "LlamaCppOptions",
    "Log",
    "Model",
    "NativeModel",
    "Node",
    "NodeConfig",
    "NodeEdge",
    "NodeLimits",
    "NodeRuntime",
    "Observe",
    "OpenAi",
    "PrincipalToken",
    "Provider",
    "ProviderAuth",
    "ProviderPool",
    "ServerTls",
    "Timeouts",
    "Tracing",
]
