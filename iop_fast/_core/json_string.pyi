"""The inside of a JSON string: what it weighs in tokens. Compiled code cimports json_string.pxd."""

def estimate_tokens(text: str) -> int:
    """The estimate of one text, by the same rule as the scan (for tests and calibration)."""

def block_readers() -> tuple[str, ...]:
    """Names of the readers of plain text that this processor can run, the one in use after import first."""

def use_block_reader(name: str) -> None:
    """Read plain text with that reader from here on: for tests and benchmarks; the findings are the same with each."""
