"""What admission says of itself. Admission alone uses this module."""

from typing import final

@final
class Readouts:
    """It has no Python interface."""
