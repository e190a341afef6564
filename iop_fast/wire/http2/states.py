"""The states of a connection, in order; what they mean stands in `peer.py`."""

NEW, OPEN, DRAINING, CLOSING, CLOSED = range(5)
