"""What admission counts. Admission alone uses this module."""

from typing import final

@final
class Tally:
    """It has no Python interface."""
