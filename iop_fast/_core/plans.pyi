"""Plans: what admission knows of the configuration. Admission alone uses this module."""

from typing import final

@final
class Catalog:
    """Models, their candidates and the queue's limits as of the current plan. It has no Python interface."""

@final
class Staging:
    """A plan that was read and checked and is not taken over yet. It has no Python interface."""
