"""Why a body is refused. The scans of bodies raise this error, `scan` of JSON and `multipart` of forms."""

class ScanError(ValueError):
    """The body is refused: a stable short `code`, the top-level key at fault or None, the offset of the byte or of the
    string at fault. The text of the error says what was expected and is fit for the client.

    `param` is well-formed text of at most 256 bytes (a lone surrogate in a key shows as U+FFFD).
    """

    # "invalid_json" | "duplicate_key" | "too_deep" | "not_an_object" | "invalid_utf8" | "bad_field" | "too_many_keys" |
    # "key_too_long"
    code: str
    param: str | None
    offset: int
    def __init__(self, code: str, param: str | None, offset: int, message: str) -> None: ...
