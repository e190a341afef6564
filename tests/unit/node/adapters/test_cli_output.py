"""What a program prints is read, however it is cut; what it complains of is cleaned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast.config.schema import CliProfile
from iop_fast.node.adapters.cli_output import (
    Complaint,
    Output,
    OutputError,
    clean,
    exit_words,
    output_of,
)
from iop_fast.seams import Usage


def reader(**keys: Any) -> Output:
    return output_of(CliProfile(id="p", command=("x",), **keys))


def lines(**fields: Any) -> Output:
    fields = {name: {"path": path} if isinstance(path, str) else path for name, path in fields.items()}
    return reader(output="json_lines", fields={"text": {"path": "t"}} | fields, line_bytes_max=2_000)


def read(output: Output, data: bytes, size: int = 1) -> tuple[str, str]:
    """(answer, reasoning) of an output that comes in pieces of a size."""
    pieces = [piece for start in range(0, len(data), size) for piece in output.feed(data[start : start + size])]
    pieces += output.finish()
    assert all(piece.text for piece in pieces)
    texts = [[piece.text for piece in pieces if piece.is_reasoning is kind] for kind in (False, True)]
    return "".join(texts[0]), "".join(texts[1])


@given(st.text(alphabet=st.sampled_from("a\n é€😀"), max_size=20), st.integers(1, 8))
def test_text_is_what_a_shell_would_take(text: str, size: int) -> None:
    """B20: wherever it is cut."""
    assert read(reader(), text.encode(), size) == (text.rstrip("\n"), "")


@given(st.binary(max_size=40), st.integers(1, 8))
def test_any_bytes_are_some_text(data: bytes, size: int) -> None:
    assert read(reader(), data, size)[0] == data.decode("utf-8", "replace").rstrip("\n")


def test_text_is_not_held_back_but_for_line_ends() -> None:
    output = reader()
    assert [piece.text for piece in output.feed(b"a b \n\n")] == ["a b "]
    assert [piece.text for piece in output.feed(b"\n")] == []
    assert [piece.text for piece in output.feed(b"c")] == ["\n\n\nc"]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_json_lines_wherever_they_are_cut(size: int) -> None:
    """B20."""
    data = b'{"t":"\xc3\xa9"}\r\n\n  {"t":"b","r":"think"}\n{"t":null}\n{"t":1}\n{"u":{"n":7}}\n{"t":"\\ud83d\\ude00"}'
    output = lines(reasoning="r", completion_tokens="u.n")
    assert read(output, data, size) == ("éb😀", "think")
    assert (output.finish_reason, output.usage, output.error) == ("stop", Usage(0, 7, 0), "")


def test_invalid_utf_8_in_a_line() -> None:
    assert read(lines(), b'{"t":"a\xffb"}\n') == ("a\ufffdb", "")


@pytest.mark.parametrize("line", [b"[1]", b'"x"', b"1", b"{", b"hello", b'{"t":"\xff', b"{}x", b"null"])
def test_a_line_that_is_no_object(line: bytes) -> None:
    with pytest.raises(OutputError, match="line 2 is none"):
        read(lines(), b"{}\n" + line + b"\n")
    with pytest.raises(OutputError, match="line 1 is none"):
        read(lines(), line)


def test_what_stands_before_a_wrong_line_is_given() -> None:
    pieces = iter(lines().feed(b'{"t":"a"}\n{"t":"b"}\noops\n{"t":"c"}\n'))
    assert [next(pieces).text, next(pieces).text] == ["a", "b"]
    with pytest.raises(OutputError, match="line 3 is none"):
        next(pieces)


def test_a_line_that_is_too_long() -> None:
    assert read(lines(), json.dumps({"t": "x" * 1_900}).encode(), 100) == ("x" * 1_900, "")
    with pytest.raises(OutputError, match="line_bytes_max"):
        read(lines(), b"x" * 2_001, 100)


def test_lines_that_count() -> None:
    where = {"path": "v", "where": {"kind": "a", "ok": "true", "n": "3", "deep.0": "x", "none": "null"}}
    line = {"v": "yes", "kind": "a", "ok": True, "n": 3, "deep": ["x"], "none": None}
    assert read(lines(text=where), json.dumps(line).encode())[0] == "yes"
    for name in ("kind", "ok", "n", "deep"):
        assert read(lines(text=where), json.dumps(line | {name: "other"}).encode())[0] == ""
    assert read(lines(text=where), json.dumps(line | {"none": 0}).encode())[0] == ""


@pytest.mark.parametrize("path", ["a.0", "a.b.c", "a.9", "a.x", "0", "b"])
def test_paths_that_lead_nowhere(path: str) -> None:
    assert read(lines(text=path), b'{"a":["",{"b":1}],"b":{"c":"x"}}')[0] == ""


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        (None, "stop"),
        (7, "stop"),
    ],
)
def test_finish_reasons(reason: Any, expected: str) -> None:
    output = lines(finish_reason="why")
    read(output, json.dumps({"why": reason}).encode())
    assert output.finish_reason == expected


@pytest.mark.parametrize("count", [True, -1, 1.5, "7", None, 2**53])
def test_what_is_no_number_of_tokens_is_unknown(count: Any) -> None:
    output = lines(prompt_tokens="n")
    read(output, json.dumps({"n": count}).encode())
    assert output.usage is None


def test_an_error_may_be_any_value() -> None:
    output = lines(error="e")
    read(output, b'{"e":{"code":7}}')
    assert output.error == '{"code":7}'


@pytest.mark.parametrize("value", ["null", "false", '""'])
def test_a_line_may_say_that_there_was_no_error(value: str) -> None:
    output = lines(error="e")
    read(output, b'{"e":%b}' % value.encode())
    assert output.error == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("\n \n", ""),
        ("one\ntwo\nthree\nfour\n", "two; three; four"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07plain\x1b(B", "red plainB"),
        ("10%\r50%\r100%\r\ndone", "100%; done"),
        ("a\x00b\x1f\x9bc\u2028d", "a\ufffdb\ufffd\ufffdc\ufffdd"),
        ("tab\there", "tab\there"),
    ],
)
def test_complaints_are_cleaned(text: str, expected: str) -> None:
    assert clean(text, {}) == expected


def test_complaints_are_bounded_at_their_end() -> None:
    said = clean("x" * 10_000 + "the reason", {})
    assert len(said) == 500
    assert said.startswith("...x")
    assert said.endswith("the reason")


def test_values_of_variables_become_their_names() -> None:
    secrets = {"KEY": "sk-secret", "LONGER": "sk-secret-and-more", "SHORT": "abc", "EMPTY": ""}
    assert clean("abc: sk-secret-and-more, sk-secret", secrets) == "abc: [LONGER], [KEY]"
    assert clean("sk-\x1b[1msecret", secrets) == "[KEY]"


@pytest.mark.parametrize("before", range(90, 120))
def test_no_part_of_a_value_survives_the_cut(before: int) -> None:
    complaint = Complaint(100, {"KEY": "sk-secret-value"})
    complaint.feed(b"x" * 200 + b"sk-secret-value" + b"y" * before)
    assert "secret" not in complaint.text()
    assert "value" not in complaint.text()


def test_the_end_of_a_complaint_is_kept() -> None:
    complaint = Complaint(50, {})
    for number in range(1000):
        complaint.feed(b"line %d\n" % number)
    assert complaint.text().endswith("line 998; line 999")
    silent = Complaint(0, {})
    silent.feed(b"something")
    assert silent.text() == ""


def test_exits_in_words() -> None:
    assert exit_words(3) == "the program exited with code 3"
    assert exit_words(-9) == "the program was killed by SIGKILL"
    assert exit_words(-99) == "the program was killed by signal 99"
