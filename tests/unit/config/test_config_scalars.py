"""What plain values mean, and that nothing is changed in silence."""

from __future__ import annotations

import pytest
import yaml

from iop_fast.config.scalars import Odd, odd_kind, read_plain


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-3", -3), ("8080", 8080), ("1000000", 1_000_000)])
def test_decimal_digits_are_whole_numbers(text: str, value: int) -> None:
    assert read_plain(text) == value
    assert type(read_plain(text)) is int


@pytest.mark.parametrize(("text", "value"), [("0.7", 0.7), ("-1.50", -1.5), ("10.0", 10.0)])
def test_a_decimal_point_makes_a_number(text: str, value: float) -> None:
    assert read_plain(text) == value
    assert type(read_plain(text)) is float


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "false", "False", "FALSE"])
def test_true_and_false_are_truth_values(text: str) -> None:
    assert read_plain(text) is (text.lower() == "true")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "null"),
        ("~", "null"),
        ("Null", "null"),
        ("yes", "truth"),
        ("No", "truth"),
        ("off", "truth"),
        ("012", "number"),
        ("1_000", "number"),
        ("1e3", "number"),
        ("1.5e-3", "number"),
        ("+5", "number"),
        ("-0", "number"),
        ("0x1F", "number"),
        ("0b11", "number"),
        ("0o17", "number"),
        (".5", "number"),
        ("5.", "number"),
        ("1:30", "number"),
        (".inf", "number"),
        (".NaN", "number"),
        ("9" * 20, "number"),
        ("2026-11-29", "date"),
        ("2026-11-29T20:00:00Z", "date"),
        ("=", "sign"),
        ("<<", "sign"),
    ],
)
def test_what_yaml_versions_read_differently_is_odd(text: str, kind: str) -> None:
    assert read_plain(text) == Odd(kind)


@pytest.mark.parametrize(
    "text",
    [
        "n",
        "y",
        "gpu-1",
        "127.0.0.1:8080",
        "Qwen/Qwen3-8B",
        "qwen3:8b",
        "1.2.3",
        "v1",
        "nope",
        "e3",
        "0x",
        "a:b",
        "3a",
        "-",
    ],
)
def test_the_rest_is_text(text: str) -> None:
    assert read_plain(text) == text


def test_everything_that_pyyaml_resolves_away_from_text_is_known() -> None:
    """PyYAML is the YAML 1.1 reader that operators' other tools use."""
    alphabet = ["0", "1", "8", "_", ".", "-", "+", "e", "E", "x", "b", ":", "n", "o", "y", "~", "=", "<", "T"]
    words = [a + b + c + d for a in alphabet for b in alphabet for c in alphabet for d in ["", *alphabet]]
    words += ["yes", "Yes", "YES", "on", "On", "ON", "off", "Off", "OFF", "null", "NULL", "2001-12-14 21:59:43.10 -5"]
    resolver = yaml.SafeLoader("")
    missed = [
        word
        for word in words
        if resolver.resolve(yaml.ScalarNode, word, (True, False)) != "tag:yaml.org,2002:str" and odd_kind(word) is None
    ]
    assert missed == []
