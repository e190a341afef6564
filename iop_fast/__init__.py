"""An LLM serving gateway: an Edge with a compiled lease ledger in front of a fleet of Nodes."""

__version__ = "0.1.0"
