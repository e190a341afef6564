"""What the parts of a request body are and what of them counts; the contract stands in iop_fast/_core/scan_roles.pxd.

What counts as input tokens
---------------------------
Every frame (open object or array) has a role, found from its parent's role and the key it stands under; the role says
what the strings in it are.

- text: `prompt`, `input`, `system`, `instructions`, `suffix`, `query`, `documents` and everything in `messages`, that
  is content strings, text parts, names, tool calls' arguments, tool results. Not the values of keys that name or
  describe (`type`, `role`, `id`, `tool_call_id`, `media_type` ...). Each message adds MESSAGE_TOKENS.
- a number in an array under `prompt` or `input` is one token, whatever its size.
- schema: `tools`, `functions` and objects under `arguments` or `input` of a tool call. Providers put the JSON text
  itself into the prompt, so keys count like values and punctuation counts.
- media: a content part whose `type` or own key says image, audio, video or file costs its constant once; nothing inside
  of it counts, so base64 is never taken by its length. The exception is an Anthropic document whose source is text.
  A string in it that begins as an http URL makes it remote media.
- anything else at the top level (`metadata`, `user`, `response_format` ...) is nothing.

A text's estimate is the sum of its code points' weights (json_string.pyx), in 1/64 tokens, rounded up once at the end:
it depends on neither the split nor the spelling, and `\\u` escapes count as what they stand for.
"""

from libc.stdint cimport uint8_t, uint32_t

from iop_fast._core.json_string cimport UNITS_PER_TOKEN, JsonString
from iop_fast._core.scan_faults cimport MODEL_CHARACTERS
from iop_fast._core.scan_names cimport (
    CONTENT,
    FORMAT,
    FORMAT_HOLDER,
    KIND_AUDIO,
    KIND_FILE,
    KIND_IMAGE,
    KIND_TEXT_SOURCE,
    KIND_VIDEO,
    MEDIA,
    MESSAGES,
    NAME_BYTES,
    NAME_CONTENT,
    NAME_DATA,
    NAME_FILE,
    NAME_FORMAT,
    NAME_FORMAT_HOLDER,
    NAME_IMAGE,
    NAME_MESSAGES,
    NAME_MODEL,
    NAME_SCHEMA,
    NAME_SOURCE,
    NAME_TEXTS,
    NAME_TOOLS,
    NAME_TYPE,
    OTHER,
    SCHEMA,
    SOURCE,
    TEXTS,
    TOP,
    UNNAMED,
    Name,
    Role,
    is_http_url,
    kind_of_type,
    same,
)


cdef Role role_of_child(Findings *found, Frame *frame, bint is_object, int depth) noexcept:
    cdef Role role = <Role>frame.role
    cdef Name name = <Name>frame.name
    if role == OTHER or role == FORMAT or role == MEDIA:
        return role if role == MEDIA else OTHER
    if role == SCHEMA:
        mark_schema(found, SCHEMA_FRAME_UNITS, depth)
        return SCHEMA
    if role == TOP:
        return role_of_field(name, is_object)
    if role == MESSAGES or role == TEXTS:
        if not is_object:
            return TEXTS
        found.units += TOKENS_PER_MESSAGE * UNITS_PER_TOKEN
        return CONTENT
    if role == SOURCE:
        if name != NAME_CONTENT:
            return MEDIA
        frame.kinds |= KIND_TEXT_SOURCE
        return CONTENT
    if role == FORMAT_HOLDER:
        return FORMAT if name == NAME_FORMAT else OTHER
    if name == NAME_SCHEMA:
        return SCHEMA
    if name == NAME_SOURCE:
        return SOURCE
    if NAME_IMAGE <= name <= NAME_FILE:
        frame.kinds |= 1 << (name - NAME_IMAGE)
        return MEDIA
    return CONTENT


cdef Role role_of_field(Name name, bint is_object) noexcept:
    if name == NAME_MESSAGES:
        return MESSAGES
    if name == NAME_TEXTS:
        return CONTENT if is_object else TEXTS
    if name == NAME_TOOLS:
        return SCHEMA
    if is_object and name == NAME_FORMAT:
        return FORMAT
    if is_object and name == NAME_FORMAT_HOLDER:
        return FORMAT_HOLDER
    return OTHER


cdef void count_media(Findings *found, int kinds) noexcept:
    """A part is closed: count what it holds, once."""
    if kinds & KIND_IMAGE:
        found.features |= IMAGES_BIT
        found.units += TOKENS_PER_IMAGE * UNITS_PER_TOKEN
    if kinds & KIND_AUDIO:
        found.features |= AUDIO_BIT
        found.units += TOKENS_PER_AUDIO * UNITS_PER_TOKEN
    if kinds & KIND_VIDEO:
        found.features |= IMAGES_BIT | FILES_BIT
        found.units += TOKENS_PER_VIDEO * UNITS_PER_TOKEN
    if kinds & KIND_FILE and not kinds & KIND_TEXT_SOURCE:
        found.features |= FILES_BIT
        found.units += TOKENS_PER_FILE * UNITS_PER_TOKEN


cdef void count_frame(Findings *found, Frame *frame) noexcept:
    if frame.kinds and frame.role == CONTENT:
        count_media(found, frame.kinds)
    elif frame.role == SOURCE and frame.kinds & KIND_TEXT_SOURCE:
        found.units += frame.held
        (frame - 1).kinds |= KIND_TEXT_SOURCE


cdef bint expect_string(Findings *found, Frame *frame, JsonString *string, int depth) noexcept:
    cdef Role role = <Role>frame.role
    cdef Name name = <Name>frame.name
    cdef bint weighs = False
    if role == CONTENT:
        if name == UNNAMED or name == NAME_SOURCE or name == NAME_SCHEMA:
            weighs = True
        elif name == NAME_TYPE:
            string.limit = NAME_BYTES
        elif NAME_IMAGE <= name <= NAME_FILE:
            frame.kinds |= 1 << (name - NAME_IMAGE)
            string.limit = URL_BYTES
    elif role == MEDIA:
        string.limit = URL_BYTES
    elif role == MESSAGES or role == TEXTS:
        weighs = True
    elif role == SCHEMA:
        weighs = True
        mark_schema(found, SCHEMA_STRING_UNITS, depth)
    elif role == TOP:
        weighs = name == NAME_TEXTS or name == NAME_TOOLS
        if name == NAME_MODEL:
            string.limit = TEXT_ROOM
            string.max_characters = MODEL_CHARACTERS
    elif role == FORMAT or role == SOURCE:
        weighs = name == NAME_DATA
        string.limit = NAME_BYTES if name == NAME_TYPE else 0
    return weighs


cdef void note_value(Findings *found, Frame *frame, JsonString *string) noexcept:
    cdef const uint8_t *text = string.kept
    cdef uint32_t length = string.length
    if frame.role == MEDIA or (frame.role == CONTENT and frame.name != NAME_TYPE):
        if is_http_url(text, length):
            found.features |= REMOTE_MEDIA_BIT
        return
    if string.is_cut:
        return
    if frame.role == CONTENT:
        frame.kinds |= kind_of_type(text, length)
    elif frame.role == SOURCE:
        if same(text, length, b"text", 4):
            frame.kinds |= KIND_TEXT_SOURCE
    elif same(text, length, b"json_schema", 11):
        found.features |= JSON_SCHEMA_BIT
