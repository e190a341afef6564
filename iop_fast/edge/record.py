"""What is known of one request: the facts that usage, logs and metrics are written from.

An `Exchange` fills them in as it goes; whoever writes them down reads them when the request is over. Moments are those
of the injected clock, 0 for what has not happened.
"""

from __future__ import annotations

from collections.abc import Sequence

from iop_fast.edge.exchange_states import State
from iop_fast.edge.reply import Reply
from iop_fast.edge.tunnel import Request
from iop_fast.seams import Usage


class Record:
    """The facts of one request."""

    __slots__ = (
        "began_ns",
        "bytes_in",
        "clamped",
        "ended_in",
        "estimated_tokens",
        "granted_ns",
        "head_ns",
        "is_long",
        "is_sent",
        "is_taken",
        "model",
        "node_id",
        "outcome",
        "provider_id",
        "queue_ns",
        "reply",
        "request",
        "sent_ns",
        "usage",
    )

    def __init__(self, request: Request, reply: Reply, began_ns: int) -> None:
        self._begin_record(request, reply, began_ns)

    def _begin_record(self, request: Request, reply: Reply, began_ns: int) -> None:
        """Be empty: what `__init__` does, for a subclass that is made for every request."""
        self.request = request
        self.reply = reply
        self.model = ""
        self.node_id = ""
        self.provider_id = ""
        self.outcome = ""  # SUCCESS, CLIENT_GONE or a failure's reason, once it is known
        self.ended_in: State | None = None  # where the outcome met it
        self.began_ns = began_ns
        self.queue_ns = 0  # how long it waited
        self.granted_ns = 0  # when the last slot was, and when its run was on its way to the Node
        self.sent_ns = 0
        self.head_ns = 0  # when the head of a provider's answer came
        self.estimated_tokens = 0
        self.is_long = False
        self.is_sent = False  # the provider may see the run
        self.is_taken = False  # the provider has taken it
        self.bytes_in = 0
        self.clamped: Sequence[str] = ()
        self.usage: Usage | None = None
