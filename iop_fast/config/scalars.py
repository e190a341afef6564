"""What a plain (unquoted) value of the file means.

YAML 1.1 and 1.2 disagree about many plain values: `no` is false to one and a text to the other, `012` is ten or
twelve, `1e3` a text or a number. Nothing here guesses. A plain value is

- a whole number when it is written in decimal digits without leading zero, sign or underscore (a minus is allowed),
- a number when it is such digits with a decimal point and more digits,
- a truth value when it is true or false (also True, TRUE, False, FALSE),
- odd when either version of YAML reads it as anything but a text: no key accepts it, the finding says how to write it,
- a text otherwise.

A quoted value is a text always.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,18})\.[0-9]{1,18}")
TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}

# The types of YAML 1.1 (yaml.org/type) and of YAML 1.2.2 (section 10.3.2) in one expression. Left out are the truth
# values y and n of YAML 1.1, which its common readers take for texts.
ODD = re.compile(
    r"""
      (?P<null>    | ~ | null | Null | NULL )
    | (?P<truth>   yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF )
    | (?P<number>  [-+]? 0b [0-1_]+
                 | [-+]? 0x [0-9a-fA-F_]+
                 | [-+]? 0o [0-7_]+
                 | [-+]? [0-9] [0-9_]*
                 | [-+]? (?: [0-9][0-9_]* (?:\.[0-9_]*)? | \.[0-9_]+ ) (?: [eE] [-+]? [0-9]+ )?
                 | [-+]? [0-9][0-9_]* (?: : [0-5]?[0-9] )+ (?: \. [0-9_]* )?
                 | [-+]? \. (?: inf|Inf|INF ) | \. (?: nan|NaN|NAN ) )
    | (?P<date>    [0-9]{4} - [0-9]{1,2} - [0-9]{1,2}
                   (?: (?: [Tt] | [\ \t]+ ) [0-9]{1,2} : [0-9]{2} : [0-9]{2} (?: \. [0-9]* )?
                       (?: [\ \t]* (?: Z | [-+] [0-9]{1,2} (?: : [0-9]{2} )? ) )? )? )
    | (?P<sign>    = | << )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Odd:
    """A plain value that the versions of YAML read differently, or that no key can hold."""

    kind: str  # "null" | "truth" | "number" | "date" | "sign"


def odd_kind(text: str) -> str | None:
    """Return what a plain text is to some version of YAML: null, truth, number, date or sign; None for a text."""
    match = ODD.fullmatch(text)
    return match.lastgroup if match else None


def read_plain(text: str) -> str | int | float | bool | Odd:
    """Read a plain value by the rules above."""
    if text in TRUTH:
        return TRUTH[text]
    if WHOLE.fullmatch(text) and text != "-0":
        return int(text)
    if DECIMAL.fullmatch(text):
        return float(text)
    kind = odd_kind(text)
    return text if kind is None else Odd(kind)
