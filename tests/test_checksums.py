"""Every byte of a folder is covered: what was changed, added, taken away or put in its place is named."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from onnx_attest.errors import UsageError
from onnx_attest.export.checksums import (
    LIST,
    TamperedError,
    digest_of,
    is_coverable,
    list_of,
    read_list,
    verified,
)

FILES = {"model.onnx": b"\x08\x0a" * 40, "data/input_0.pb": b"01234", "CARD.md": "# für alle\n".encode()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "bundle"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / LIST).write_bytes(list_of({name: digest_of(root / name) for name in FILES}))
    return root


def test_a_whole_folder_has_the_digest_of_its_list_as_its_name(folder):
    assert verified(folder) == hashlib.sha256((folder / LIST).read_bytes()).hexdigest()


def test_the_list_is_what_sha256sum_writes_in_order_of_paths(folder):
    lines = (folder / LIST).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == sorted(FILES)
    assert lines[0].startswith(hashlib.sha256(FILES["CARD.md"]).hexdigest())


def test_any_changed_byte_is_refused_and_a_file_named(folder):
    draw = random.Random(0)
    names = [*FILES, LIST]
    for _ in range(300):
        name = draw.choice(names)
        path = folder / name
        whole = path.read_bytes()
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ draw.randrange(1, 256)]) + whole[place + 1 :])
        with pytest.raises(TamperedError) as refused:
            verified(folder)
        assert name in str(refused.value) or LIST in str(refused.value)
        path.write_bytes(whole)
    verified(folder)


def test_a_byte_more_or_less_is_refused(folder):
    for name in (*FILES, LIST):
        whole = (folder / name).read_bytes()
        for other in (whole[:-1], whole + b"\n", b""):
            (folder / name).write_bytes(other)
            with pytest.raises(TamperedError, match=LIST if name == LIST else name):
                verified(folder)
        (folder / name).write_bytes(whole)


def test_what_is_missing_extra_or_in_a_file_s_place_is_named(folder):
    (folder / "more.txt").write_text("x")
    with pytest.raises(TamperedError, match=r"more\.txt is not in SHA256SUMS"):
        verified(folder)
    (folder / "more.txt").unlink()
    (folder / "hollow").mkdir()
    with pytest.raises(TamperedError, match="hollow is an empty folder"):
        verified(folder)
    (folder / "hollow").rmdir()
    (folder / "CARD.md").rename(folder.parent / "CARD.md")
    with pytest.raises(TamperedError, match=r"CARD\.md is in SHA256SUMS and not there"):
        verified(folder)
    (folder / "CARD.md").symlink_to(folder.parent / "CARD.md")
    with pytest.raises(TamperedError, match=r"CARD\.md is a link"):
        verified(folder)


def test_a_folder_without_a_list_is_no_bundle(folder, tmp_path):
    (folder / LIST).unlink()
    for path in (folder, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="give the folder of a bundle"):
            verified(path)
    (folder / LIST).symlink_to(folder / "CARD.md")
    with pytest.raises(TamperedError, match="no regular file"):
        verified(folder)


SOME = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{SOME}  a",
        f"{SOME} a\n",
        f"{SOME} *a\n",
        f"{SOME.upper()}  a\n",
        f"{SOME[:-1]}  a\n",
        f"{SOME}  a\r\n",
        f"{SOME}  a\n\n",
        f"{SOME}  ../a\n",
        f"{SOME}  /a\n",
        f"{SOME}  a//b\n",
        f"{SOME}  a/\n",
        f"{SOME}  .a\n",
        f"{SOME}  a\\b\n",
        f"{SOME}  ä\n",
        f"{SOME}  b\n{SOME}  a\n",
        f"{SOME}  a\n{SOME}  a\n",
    ],
)
def test_the_list_has_one_strict_grammar(text):
    with pytest.raises(TamperedError, match=LIST):
        read_list(text.encode())


@pytest.mark.parametrize("path", ["a", "a/b.c", "test_data_set_0/input_0.pb", "x+y-1"])
def test_paths_that_are_covered(path):
    assert is_coverable(path)
    assert read_list(list_of({path: SOME})) == {path: SOME}


@pytest.mark.parametrize("path", ["", "..", "a/..", "/a", "a b", "a\n", "C:a", "~a"])
def test_paths_that_are_not(path):
    assert not is_coverable(path)
