"""What the keys of a request body mean to the body scan, and which role a frame has that stands under them.

Only names that change how something is counted, refused or reported are here; any other key is UNNAMED.
"""

from libc.stdint cimport uint8_t

cdef enum:
    NAME_BYTES = 24      # the longest key or type below, and some

cdef enum Role:
    OTHER            # nothing in it matters
    TOP
    MESSAGES         # array of messages
    TEXTS            # array of texts, tokens or input items
    CONTENT          # a message, its content, a part
    SCHEMA
    MEDIA            # what a media key stands for
    SOURCE           # Anthropic's `source`: media, unless its type says text
    FORMAT           # response_format
    FORMAT_HOLDER    # object with a response format under "format"

cdef enum Name:
    UNNAMED          # any other key, and what an array's items stand under
    NAME_MODEL
    NAME_STREAM
    NAME_MESSAGES
    NAME_TEXTS
    NAME_TOOLS
    NAME_FORMAT
    NAME_FORMAT_HOLDER
    NAME_LIMIT
    NAME_TYPE
    NAME_LABEL       # its string is no text
    NAME_IMAGE
    NAME_AUDIO
    NAME_VIDEO
    NAME_FILE
    NAME_SOURCE
    NAME_SCHEMA
    NAME_DATA
    NAME_CONTENT

cdef enum:
    KIND_IMAGE = 1
    KIND_AUDIO = 2
    KIND_VIDEO = 4
    KIND_FILE = 8
    KIND_TEXT_SOURCE = 16


cdef bint same(const uint8_t *text, size_t length, const char *name, size_t name_length) noexcept
cdef Name top_name(const uint8_t *text, size_t length) noexcept
cdef Name content_name(const uint8_t *text, size_t length) noexcept
cdef int kind_of_type(const uint8_t *text, size_t length) noexcept
cdef Name name_in(Role role, const uint8_t *text, size_t length) noexcept
cdef bint is_http_url(const uint8_t *text, size_t length) noexcept
cdef bint is_other_spelling(const uint8_t *text, size_t length) noexcept
