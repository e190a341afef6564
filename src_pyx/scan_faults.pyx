"""What is said of a body that is refused; the contract stands in iop_fast/_core/scan_faults.pyi."""

from libc.stdint cimport int64_t

# By fault: the code, the field at fault (KEY for the key that was read last), and what is wrong.
cdef object KEY = object()
cdef dict FAULTS = {
    FAULT_START: ("invalid_json", None, "expected '{'"),
    FAULT_BYTE_ORDER_MARK: ("invalid_json", None, "expected '{', got a byte order mark"),
    FAULT_NOT_OBJECT: ("not_an_object", None, "the body is not an object, expected '{'"),
    FAULT_FIRST_KEY: ("invalid_json", None, "expected a key in double quotes or '}'"),
    FAULT_KEY: ("invalid_json", None, "expected a key in double quotes"),
    FAULT_COLON: ("invalid_json", None, "expected ':'"),
    FAULT_FIRST_ITEM: ("invalid_json", None, "expected a value or ']'"),
    FAULT_VALUE: ("invalid_json", None, "expected a value"),
    FAULT_COMMA_OBJECT: ("invalid_json", None, "expected ',' or '}'"),
    FAULT_COMMA_ARRAY: ("invalid_json", None, "expected ',' or ']'"),
    FAULT_TRAILING: ("invalid_json", None, "expected nothing behind the closing brace"),
    FAULT_CONTROL: ("invalid_json", None, "control characters in a string must be escaped"),
    FAULT_ESCAPE: ("invalid_json", None, "expected one of \" \\ / b f n r t u behind a backslash"),
    FAULT_HEX: ("invalid_json", None, "expected four hexadecimal digits behind \\u"),
    FAULT_LITERAL: ("invalid_json", None, "expected true, false or null"),
    FAULT_NUMBER: ("invalid_json", None, "malformed number"),
    FAULT_UTF8: ("invalid_utf8", None, "malformed UTF-8"),
    FAULT_DEPTH: ("too_deep", None, "arrays and objects are nested too deep"),
    FAULT_DUPLICATE: ("duplicate_key", KEY, "the key stands twice at the top level"),
    FAULT_SPELLING: ("bad_field", KEY, "the key is a known one in other letters, expected lower case"),
    FAULT_KEY_COUNT: ("too_many_keys", None, f"more than {KEY_LIMIT} keys at the top level"),
    FAULT_KEY_LENGTH: ("key_too_long", None, f"a top-level key is longer than {KEY_BYTES} bytes"),
    FAULT_MODEL_TYPE: ("bad_field", "model", "model must be a string"),
    FAULT_MODEL_LENGTH: ("bad_field", "model", f"model is longer than {MODEL_CHARACTERS} characters"),
    FAULT_MODEL_SURROGATE: ("bad_field", "model", "model holds a lone surrogate"),
    FAULT_STREAM_TYPE: ("bad_field", "stream", "stream must be true, false or null"),
    FAULT_MESSAGES_TYPE: ("bad_field", "messages", "messages must be an array"),
    FAULT_EMPTY: ("invalid_json", None, "the body is empty"),
    FAULT_INCOMPLETE: ("invalid_json", None, "the body ends inside the object"),
}


class ScanError(ValueError):

    def __init__(self, str code, param, Py_ssize_t offset, str message):
        super().__init__(message)
        self.code = code
        self.param = param
        self.offset = offset


cdef object error_of(Fault fault, str key, int64_t offset):
    if fault == FAULT_MEMORY:
        return MemoryError()
    code, param, what = FAULTS[fault]
    return ScanError(code, key if param is KEY else param, offset, f"{what}, at byte {offset}")
