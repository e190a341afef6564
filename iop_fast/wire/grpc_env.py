"""The process environment of gRPC, set before gRPC is first imported.

gRPC reads it while it is being imported. Its fork handlers run in every child that uvloop starts and kill some of them
by SIGSEGV before exec while a stream is open, so fork support is off in both programs.

The package `iop_fast.wire` imports this module first and nothing outside of that package imports grpc, hence no import
order anywhere else can get this wrong. The command line imports it too, before anything that might.
"""

from __future__ import annotations

import os
import sys

FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

if "grpc" in sys.modules and os.environ.get(FORK_SUPPORT) != "0":
    raise ImportError(
        f"grpc was imported before iop_fast.wire.grpc_env could set {FORK_SUPPORT}=0; import iop_fast.wire first"
    )

os.environ[FORK_SUPPORT] = "0"

# gRPC's own lines on stderr are no JSON and repeat what we log. Whoever wants them sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
