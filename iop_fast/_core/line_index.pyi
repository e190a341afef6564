"""Which lines each provider can serve, oldest first. The wait queue alone uses this module."""

from typing import final

@final
class LineIndex:
    """It has no Python interface."""
