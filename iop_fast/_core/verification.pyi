"""The invariants of the core, asserted. Admission alone uses this module."""

from typing import final

@final
class Verification:
    """It has no Python interface."""
