"""Bringing the core back to its fixed point. Admission alone uses this module."""

from typing import final

@final
class Settlement:
    """It has no Python interface."""
