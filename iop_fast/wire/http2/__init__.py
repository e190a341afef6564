"""gRPC over HTTP/2 (RFC 9113) on the event loop: one read and one write a message, no threads.

`Connection` is an asyncio protocol, for the server's side and for the client's; `Call` is one gRPC call on it. They
know nothing of sessions, health or TLS: `server.py` and `client.py` put those around them.
"""
