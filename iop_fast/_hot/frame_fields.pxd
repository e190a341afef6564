"""Numbers of proto/iop/runtime.proto that both halves of the frame codec and dispatch know."""

# Fields of Frame. Session frames are 2 to 10.
cdef enum Body:
    NO_BODY = 0
    FIRST_SESSION = 2
    LAST_SESSION = 10
    TUNNEL_REQUEST = 16
    RUN_REQUEST = 17
    REQUEST_BODY = 18
    TAKEN = 19
    HEAD = 20
    DATA = 21
    RUN_EVENT = 22
    RUN_END = 23
    WINDOW = 24
    CANCEL = 25

# Fields of RunEvent.
cdef enum Said:
    SAID_NOTHING = 0
    TEXT = 1
    REASONING = 2
    TOOL_CALL = 3
    EMBEDDING = 4
    FINISH = 5
    CHOICE = 16

cdef enum:
    HEADERS_MAX = 4096
    EVENT_SIZE = 256           # see EVENT_BYTES in frames.pyi
