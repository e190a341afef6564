"""Memory of the core's tables. Compiled code alone uses this module."""
