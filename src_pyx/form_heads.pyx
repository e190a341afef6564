"""Heads of a form's parts, which are short and few; the contract stands in iop_fast/_core/form_heads.pxd.

What is refused, since parsers of forms read it in more than one way (see multipart.pyx):

- a part has one Content-Disposition, `form-data` with one name; a name is plain, so that it has one spelling. `model`
  and `stream` in other letters or with an index (`model[]`) are refused, since some frameworks read them as the field;
- a file's name holds neither a quote, a backslash nor a semicolon: parsers disagree on escapes and some split at any
  semicolon. `filename*` stands only beside a `filename` that says the same (.NET writes both);
- no transfer encoding but the three that leave bytes alone, no nested multipart, no content encoding, no length that is
  not the part's own, and for `model` and `stream` no type but plain text in UTF-8;
- `_charset_` is refused: it would say how to read the other fields.
"""

from libc.stdint cimport int64_t

from urllib.parse import unquote_to_bytes

cdef bytes ALPHANUMERIC = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
cdef frozenset TOKEN_CHARACTERS = frozenset(ALPHANUMERIC + b"!#$%&'*+-.^_`|~")
cdef frozenset NAME_CHARACTERS = frozenset(ALPHANUMERIC + b"_-.:[]")
cdef frozenset PARAMETERS = frozenset((b"name", b"filename", b"filename*"))
cdef frozenset IDENTITY_ENCODINGS = frozenset((b"7bit", b"8bit", b"binary"))
cdef frozenset PLAIN_CHARSETS = frozenset((b"utf-8", b"us-ascii"))
cdef bytes SPACE = b" \t"


class BadPart(Exception):
    """The head of a part is refused; the text says why."""


cdef Kind read_part(bytes head, int64_t *declared) except *:
    cdef dict fields = read_fields(head) if head else {}
    cdef bytes disposition = fields.get(b"content-disposition")
    cdef bytes media = fields.get(b"content-type")
    cdef bytes length = fields.get(b"content-length")
    if disposition is None:
        raise BadPart("a part has no content-disposition")
    name, is_file = read_disposition(disposition)
    cdef Kind kind = kind_of(name, is_file)
    if fields.get(b"content-transfer-encoding", b"binary").lower() not in IDENTITY_ENCODINGS:
        raise BadPart("a part has a content-transfer-encoding that changes its bytes")
    if b"content-encoding" in fields:
        raise BadPart("a part has a content-encoding")
    if media is not None and media.lower().startswith(b"multipart/"):
        raise BadPart("a part is a multipart of its own")
    if (kind == MODEL or kind == STREAM) and media is not None and not is_plain_text(media):
        raise BadPart(f"the field {name.decode()} is not plain text in UTF-8")
    declared[0] = -1 if length is None else read_length(length)
    return kind


cdef dict read_fields(bytes head):
    """Cut a head, which holds no line end but CRLF, into fields by lower-case name."""
    cdef dict fields = {}
    cdef bytes line, name, value
    for line in head.split(b"\r\n"):
        if line[:1] in (b" ", b"\t"):
            raise BadPart("a header line of a part is folded")
        name, colon, value = line.partition(b":")
        if not colon or not name or not TOKEN_CHARACTERS.issuperset(name):
            raise BadPart("a header line of a part is malformed")
        name = name.lower()
        if name in fields:
            raise BadPart("a part has a header twice")
        fields[name] = value.strip(SPACE)
    return fields


cdef list read_parameters(bytes value):
    """Cut `word; name=value; ...` into the word and pairs; a value is a token or a quoted string without escapes."""
    cdef bytes word, rest, name, text
    word, semicolon, rest = value.partition(b";")
    cdef list found = [word.strip(SPACE).lower()]
    while semicolon:
        name, equals, rest = rest.lstrip(SPACE).partition(b"=")
        if not equals or not name or not TOKEN_CHARACTERS.issuperset(name):
            raise BadPart("a parameter of a part's header is malformed")
        if rest[:1] == b'"':
            text, quote, rest = rest[1:].partition(b'"')
            if not quote or b"\\" in text or b";" in text:
                raise BadPart("a quoted value in a part's header is open, or holds a quote, a backslash or a semicolon")
            rest, semicolon, after = rest.partition(b";")
            if rest.strip(SPACE):
                raise BadPart("a parameter of a part's header is malformed")
            rest = after
        else:
            text, semicolon, rest = rest.partition(b";")
            text = text.rstrip(SPACE)
            if not text or not TOKEN_CHARACTERS.issuperset(text):
                raise BadPart("a parameter of a part's header is malformed")
        found.append((name.lower(), text))
    return found


cdef tuple read_disposition(bytes value):
    """Return the field's name and whether it is a file."""
    cdef list found = read_parameters(value)
    cdef dict given = dict(found[1:])
    if found[0] != b"form-data" or len(given) != len(found) - 1 or not PARAMETERS.issuperset(given):
        raise BadPart("expected content-disposition: form-data with a name, and maybe a filename")
    cdef bytes name = given.get(b"name", b"")
    if not 1 <= len(name) <= NAME_LIMIT or not NAME_CHARACTERS.issuperset(name):
        raise BadPart(f"a field's name is 1 to {NAME_LIMIT} characters A-Z a-z 0-9 _ - . : [ ]")
    cdef bytes extended = given.get(b"filename*")
    if extended is not None:
        charset, _, text = extended.partition(b"''")
        if charset.lower() != b"utf-8" or unquote_to_bytes(text) != given.get(b"filename"):
            raise BadPart("filename* stands without a filename that says the same")
    return name, b"filename" in given


cdef bint is_plain_text(bytes value):
    """True for a type under which a value is read as UTF-8."""
    cdef list found = read_parameters(value)
    if found[0] != b"text/plain" or len(found) > 2:
        return False
    return len(found) == 1 or (found[1][0] == b"charset" and found[1][1].lower() in PLAIN_CHARSETS)


cdef int64_t read_length(bytes value) except -1:
    if not 1 <= len(value) <= 18 or not value.isdigit():
        raise BadPart("the length of a part is no number")
    return int(value)


cdef Kind kind_of(bytes name, bint is_file) except *:
    """Say what a field is; refuse the names that somebody else would read as one of ours."""
    cdef bytes stem = name.lower().partition(b"[")[0].partition(b".")[0]
    if stem == b"model" or stem == b"stream":
        if name != stem:
            raise BadPart(f"the field {name.decode()} is a known one in another spelling")
        if is_file:
            raise BadPart(f"the field {name.decode()} is a file")
        return MODEL if name == b"model" else STREAM
    if stem == b"_charset_":
        raise BadPart("the field _charset_ is not supported")
    if is_file:
        return FILE
    return PROMPT if name == b"prompt" else OTHER
