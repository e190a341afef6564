"""Options of adapters: texts with a meaning."""

from __future__ import annotations

import pytest

from iop_fast.config.adapter_options import OptionValue, read_option, read_options


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_ctx", "32768", 32768),
        ("num_batch", "1", 1),
        ("num_thread", "8", 8),
        ("num_gpu", "0", 0),
        ("num_gpu", "-1", -1),
        ("main_gpu", "0", 0),
        ("num_keep", "24", 24),
        ("use_mmap", "false", False),
        ("keep_alive", "5m", "5m"),
        ("keep_alive", "1h30m", "1h30m"),
        ("keep_alive", "1.5h", "1.5h"),
        ("keep_alive", "-1m", "-1m"),
        ("keep_alive", "3600", 3600),
        ("keep_alive", "0", 0),
        ("keep_alive", "-1", -1),
        ("think", "true", True),
        ("think", "false", False),
        ("think", "high", "high"),
        ("truncate", "false", False),
        ("shift", "true", True),
    ],
)
def test_an_option_is_read(name: str, text: str, value: OptionValue) -> None:
    read = read_option("ollama", name, text)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("num_ctx", "0", "expected a whole number of at least 1, got '0'"),
        ("num_ctx", "8k", "expected a whole number of at least 1, got '8k'"),
        ("num_ctx", "1234567890", "expected a whole number of at least 1, got '1234567890'"),
        ("num_gpu", "-2", "expected a whole number of at least -1, got '-2'"),
        ("main_gpu", "-1", "expected a whole number of at least 0, got '-1'"),
        ("use_mmap", "yes", "expected true or false, got 'yes'"),
        ("keep_alive", "soon", "expected seconds or a duration as 5m or 1h30m, got 'soon'"),
        ("keep_alive", "5 m", "expected seconds or a duration as 5m or 1h30m, got '5 m'"),
        ("think", "hard", "expected true, false or one of low, medium, high, max, got 'hard'"),
    ],
)
def test_a_wrong_value_says_what_was_expected(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        read_option("ollama", name, text)
    assert str(caught.value) == message
    with pytest.raises(ValueError, match="expected") as caught:
        read_options("ollama", [(name, text)])
    assert str(caught.value) == f"options.{name}: {message}"


def test_an_option_belongs_to_a_type() -> None:
    with pytest.raises(ValueError, match="the type openai_compat has no such option, expected none"):
        read_option("openai_compat", "num_ctx", "1")
    assert read_options("ollama", [("num_ctx", "8"), ("think", "low")]) == {"num_ctx": 8, "think": "low"}
