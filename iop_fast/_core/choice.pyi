"""The choice among the candidates of a request. Compiled code alone uses this module."""
