"""What the pages say: their links lead somewhere, and their programs run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "reports" / "reference").glob("*.md")]
)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page, `language` being what stands behind the fence."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in _LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{target}#{anchor}"


def run(program: str, folder: Path) -> str:
    (folder / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_three_minutes_of_the_readme(tmp_path):
    module, ship, suite = blocks("README.md", "python")
    (tmp_path / "my_attention.py").write_text(module)
    assert run(ship, tmp_path).splitlines()[-1] == "passed"
    assert (tmp_path / "attention.onnx").exists()
    assert (tmp_path / "report" / "summary.md").read_text().startswith("**passed**")
    (tmp_path / "attention.onnx").rename(tmp_path / "model.onnx")
    (tmp_path / "test_model.py").write_text(suite)
    run("import pytest\nraise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider']))", tmp_path)


def test_the_chinese_readme_has_the_same_programs():
    assert [blocks("README.zh.md", language) for language in ("python", "")] == [
        blocks("README.md", language) for language in ("python", "")
    ]
