"""The inside of one JSON number, taken in pieces. Inline: an array of tokens is little else."""

from libc.stdint cimport uint8_t

cdef enum NumberState:
    IN_MINUS         # a digit must follow
    IN_POINT         # a digit must follow
    IN_E             # a sign or a digit must follow
    IN_E_SIGN        # a digit must follow
    IN_ZERO          # the number may end, from here on
    IN_INTEGER
    IN_FRACTION
    IN_EXPONENT
    NOT_A_NUMBER


cdef inline NumberState open_number(uint8_t c) noexcept:
    """The state behind a number's first byte."""
    if 49 <= c <= 57:
        return IN_INTEGER
    if c == 48:
        return IN_ZERO
    return IN_MINUS if c == 45 else NOT_A_NUMBER


cdef inline const uint8_t *take_number(NumberState *number, const uint8_t *p, const uint8_t *end) noexcept:
    """Take bytes up to the one behind the number, or to the end of the piece. Returns where it stopped: behind the
    number, at `end` inside of it, or at the byte at fault (NOT_A_NUMBER)."""
    cdef uint8_t c
    cdef NumberState state = number[0]
    while p < end:
        c = p[0]
        if 48 <= c <= 57:
            if state == IN_MINUS:
                state = IN_ZERO if c == 48 else IN_INTEGER
            elif state == IN_POINT:
                state = IN_FRACTION
            elif state == IN_E or state == IN_E_SIGN:
                state = IN_EXPONENT
            elif state == IN_ZERO:
                state = NOT_A_NUMBER
                break
        elif c == 46 and (state == IN_INTEGER or state == IN_ZERO):
            state = IN_POINT
        elif (c == 101 or c == 69) and IN_ZERO <= state <= IN_FRACTION:
            state = IN_E
        elif (c == 43 or c == 45) and state == IN_E:
            state = IN_E_SIGN
        else:
            if state < IN_ZERO:
                state = NOT_A_NUMBER
            break
        p += 1
    number[0] = state
    return p
