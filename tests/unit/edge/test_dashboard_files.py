"""The files of the operator's page: small, whole, of our own origin, and without a way for text to become markup."""

from __future__ import annotations

import re

import pytest

from iop_fast.edge.dashboard_http import FOLDER, PAGE, PREFIX, TYPES, read_files
from iop_fast.edge.views import VERDICTS
from iop_fast.errors import Failure

BYTES_MAX = 60_000

FILES = {name: body.decode() for name, body in read_files().items()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}

# What makes markup or code of text, or a request that is no GET.
FORBIDDEN = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc",
    r"\beval\b|new Function|javascript:|setTimeout\(\s*[\"'`]",
    r"\bPOST\b|\bPUT\b|\bDELETE\b|sendBeacon|WebSocket|XMLHttpRequest",
    r"localStorage|sessionStorage|document\.cookie|indexedDB",
)
# Names of namespaces, which nobody fetches.
NAMESPACE = "http://www.w3.org/2000/svg"


def test_the_page_is_small() -> None:
    assert sum(len(body) for body in read_files().values()) < BYTES_MAX


def test_every_file_is_served() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(FILES)
    assert {path.suffix for path in FOLDER.iterdir()} == set(TYPES)


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text = FILES[name].replace(NAMESPACE, "")
    assert not re.search(r"https?:|//[a-z0-9-]+\.|@import|url\(", text)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_script_makes_markup_of_text_or_changes_anything(name: str, pattern: str) -> None:
    assert not re.search(pattern, SCRIPTS[name])


def test_no_element_carries_code_or_style_of_its_own() -> None:
    assert not re.search(r"\s(on[a-z]+|style)\s*=", FILES[PAGE])
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style", FILES[PAGE]) == []


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r'(?:href|src)="dashboard/([^"]+)"', FILES[PAGE]))
    for text in SCRIPTS.values():
        named |= set(re.findall(r'from "\./([^"]+)"', text))
    assert named == set(FILES) - {PAGE}
    assert PREFIX == "/dashboard/"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_takes_what_the_others_give(name: str) -> None:
    for taken, source in re.findall(r'import \{([^}]+)\} from "\./([^"]+)"', SCRIPTS[name]):
        given = set(re.findall(r"export (?:async )?(?:const|function|class) (\w+)", SCRIPTS[source]))
        names = {one.strip() for one in taken.split(",")}
        assert names - given == set()
        used = SCRIPTS[name].partition(f'from "./{source}"')[2]
        assert {one for one in names if not re.search(rf"\b{one}\b", used)} == set(), "taken and not used"


def test_every_element_that_a_script_asks_for_is_on_the_page() -> None:
    asked = {one for text in SCRIPTS.values() for one in re.findall(r'byId\("([^"]+)"\)', text)}
    assert asked <= set(re.findall(r'id="([^"]+)"', FILES[PAGE]))


def test_outcomes_and_verdicts_are_those_of_the_edge() -> None:
    ours = re.search(r"const OURS = \[([^\]]+)\]", SCRIPTS["history.js"])
    assert ours is not None
    assert set(re.findall(r'"(\w+)"', ours[1])) <= {failure.reason for failure in Failure}
    shapes = re.search(r"const SHAPES = \{([^}]+)\}", SCRIPTS["explain.js"])
    assert shapes is not None
    assert set(re.findall(r"(\w+):", shapes[1])) <= set(VERDICTS)
