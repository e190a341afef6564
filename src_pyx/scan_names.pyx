"""Names in request bodies; the table of roles and names stands in iop_fast/_core/scan_names.pxd."""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp


cdef bint same(const uint8_t *text, size_t length, const char *name, size_t name_length) noexcept:
    return length == name_length and memcmp(text, name, length) == 0


cdef Name top_name(const uint8_t *text, size_t length) noexcept:
    """Find what a top-level key means."""
    if length == 5:
        if memcmp(text, b"model", 5) == 0:
            return NAME_MODEL
        if memcmp(text, b"input", 5) == 0 or memcmp(text, b"query", 5) == 0:
            return NAME_TEXTS
        if memcmp(text, b"tools", 5) == 0:
            return NAME_TOOLS
    elif length == 6:
        if memcmp(text, b"stream", 6) == 0:
            return NAME_STREAM
        if memcmp(text, b"prompt", 6) == 0 or memcmp(text, b"system", 6) == 0 or memcmp(text, b"suffix", 6) == 0:
            return NAME_TEXTS
    elif same(text, length, b"messages", 8):
        return NAME_MESSAGES
    elif same(text, length, b"functions", 9):
        return NAME_TOOLS
    elif same(text, length, b"documents", 9) or same(text, length, b"instructions", 12):
        return NAME_TEXTS
    elif same(text, length, b"response_format", 15) or same(text, length, b"output_format", 13):
        return NAME_FORMAT
    elif same(text, length, b"text", 4) or same(text, length, b"output_config", 13):
        return NAME_FORMAT_HOLDER
    elif (
        same(text, length, b"max_tokens", 10)
        or same(text, length, b"max_completion_tokens", 21)
        or same(text, length, b"max_output_tokens", 17)
    ):
        return NAME_LIMIT
    return UNNAMED


cdef Name content_name(const uint8_t *text, size_t length) noexcept:
    """Find what a key of a message, an input item or a content part means."""
    if same(text, length, b"type", 4):
        return NAME_TYPE
    if same(text, length, b"text", 4) or same(text, length, b"content", 7):
        return UNNAMED
    if (
        same(text, length, b"role", 4) or same(text, length, b"id", 2) or same(text, length, b"status", 6)
        or same(text, length, b"detail", 6) or same(text, length, b"call_id", 7) or same(text, length, b"file_id", 7)
        or same(text, length, b"tool_call_id", 12) or same(text, length, b"tool_use_id", 11)
        or same(text, length, b"media_type", 10) or same(text, length, b"file_data", 9)
        or same(text, length, b"encrypted_content", 17) or same(text, length, b"signature", 9)
        or same(text, length, b"result", 6) or same(text, length, b"file_url", 8)
    ):
        return NAME_LABEL
    if (
        same(text, length, b"image_url", 9) or same(text, length, b"image", 5)
        or same(text, length, b"image_embeds", 12)
    ):
        return NAME_IMAGE
    if same(text, length, b"input_audio", 11) or same(text, length, b"audio_url", 9):
        return NAME_AUDIO
    if same(text, length, b"video_url", 9) or same(text, length, b"video", 5):
        return NAME_VIDEO
    if same(text, length, b"file", 4):
        return NAME_FILE
    if same(text, length, b"source", 6):
        return NAME_SOURCE
    if same(text, length, b"arguments", 9) or same(text, length, b"input", 5):
        return NAME_SCHEMA
    return UNNAMED


cdef int kind_of_type(const uint8_t *text, size_t length) noexcept:
    """Find what a part is by its `type`, as KIND_* or 0."""
    if (
        same(text, length, b"image_url", 9) or same(text, length, b"input_image", 11) or same(text, length, b"image", 5)
        or same(text, length, b"image_generation_call", 21) or same(text, length, b"image_embeds", 12)
    ):
        return KIND_IMAGE
    if same(text, length, b"input_audio", 11) or same(text, length, b"audio_url", 9) or same(text, length, b"audio", 5):
        return KIND_AUDIO
    if same(text, length, b"video_url", 9) or same(text, length, b"video", 5) or same(text, length, b"input_video", 11):
        return KIND_VIDEO
    if same(text, length, b"file", 4) or same(text, length, b"input_file", 10) or same(text, length, b"document", 8):
        return KIND_FILE
    return 0


cdef bint is_http_url(const uint8_t *text, size_t length) noexcept:
    """True for a text that begins with http:// or https://, in any case."""
    cdef size_t at
    if length < 7 or text[0] | 32 != 104 or text[1] | 32 != 116 or text[2] | 32 != 116 or text[3] | 32 != 112:
        return False
    at = 5 if text[4] | 32 == 115 else 4
    return length >= at + 3 and memcmp(text + at, b"://", 3) == 0


cdef Name name_in(Role role, const uint8_t *text, size_t length) noexcept:
    """Find what a key means in a frame below the top."""
    if role == CONTENT:
        return content_name(text, length)
    if role == FORMAT_HOLDER:
        return NAME_FORMAT if same(text, length, b"format", 6) else UNNAMED
    if role == FORMAT:
        return NAME_TYPE if same(text, length, b"type", 4) else UNNAMED
    if role == SOURCE:
        if same(text, length, b"type", 4):
            return NAME_TYPE
        if same(text, length, b"data", 4):
            return NAME_DATA
        if same(text, length, b"content", 7):
            return NAME_CONTENT
    return UNNAMED


cdef bint is_other_spelling(const uint8_t *text, size_t length) noexcept:
    """Tell whether the key is a known one once letters are folded as case-blind parsers fold them (also U+017F for s,
    U+212A for k)."""
    cdef uint8_t folded[NAME_BYTES]
    cdef size_t at = 0, size = 0
    cdef bint is_folded = False
    while at < length and size < NAME_BYTES:
        if 65 <= text[at] <= 90:
            folded[size] = text[at] | 32
            is_folded = True
            at += 1
        elif text[at] == 0xC5 and at + 1 < length and text[at + 1] == 0xBF:
            folded[size] = 115
            is_folded = True
            at += 2
        elif text[at] == 0xE2 and at + 2 < length and text[at + 1] == 0x84 and text[at + 2] == 0xAA:
            folded[size] = 107
            is_folded = True
            at += 3
        else:
            folded[size] = text[at]
            at += 1
        size += 1
    return is_folded and at == length and top_name(folded, size) != UNNAMED
