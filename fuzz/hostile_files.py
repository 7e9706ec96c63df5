"""Mutations of all other files that are read: JSON of several kinds, records, TOML, arrays, and folders of bundles."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hostile_models import FLOATS, INTEGERS, TEXTS, change_a_field
from onnx import TensorProto, numpy_helper

# --- bytes --------------------------------------------------------------------------------------------------------


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Return bytes cut, flipped, overwritten, repeated or joined with random ones."""
    if not data:
        return rng.randbytes(5)
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    changed = bytearray(data)
    choice = rng.randrange(6)
    if choice == 0:
        return data[:first]
    if choice == 1:
        changed[first % len(data)] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if choice == 2:
        return data[:first] + rng.randbytes(rng.randrange(1, 9)) + data[first:]
    if choice == 3:
        return data[:first] + data[last:]
    if choice == 4:
        return data[:last] + data[first:last] * rng.choice((1, 20)) + data[last:]
    return rng.choice(
        (b"", b"\0" * 100, b"\xff\xfe", b"\xef\xbb\xbf" + data, rng.randbytes(1000), data + data)
    )


# --- JSON ---------------------------------------------------------------------------------------------------------


def odd(rng: random.Random) -> Any:
    """Return a value of JSON that few expect."""
    return rng.choice(
        (
            None, True, False, rng.choice(INTEGERS), rng.choice(FLOATS[:7]), rng.choice(TEXTS), [], {}, [None], {"": None},
            10**30, -1, 0.5, [rng.choice(TEXTS)], [rng.choice(INTEGERS)] * 3, {"x": rng.choice(INTEGERS)}, "2" * 50, [[]] * 3,
        )
    )  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return each container of a value with each of its keys."""
    found = []
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            found += _places(value[key])
    return found


def changed(rng: random.Random, value: Any, times: int = 1) -> Any:
    """Return a value of JSON with some places changed: to something odd, to another one's value, or left out."""
    value = json.loads(json.dumps(value))
    for _ in range(times):
        places = _places(value)
        if not places:
            return odd(rng)
        container, key = rng.choice(places)
        choice = rng.random()
        if choice < 0.15:
            del container[key]
        elif choice < 0.35:
            other, place = rng.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                container[key] = json.loads(json.dumps(other[place]))
        elif choice < 0.4 and isinstance(container, dict):
            container[rng.choice(TEXTS)] = container[key]
        else:
            container[key] = odd(rng)
    return value


def nested_json(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Return a list in a list, and so on."""
    return opening * depth + closing * depth


def odd_json(rng: random.Random, value: Any) -> bytes:
    """Return JSON that is not what it should be: as text, as a value, or in what a parser has to hold for it."""
    choice = rng.random()
    if choice < 0.65:
        return json.dumps(
            changed(rng, value, rng.choice((1, 1, 2, 5))), ensure_ascii=rng.random() < 0.5
        ).encode(errors="replace")
    text = json.dumps(value).encode()
    if choice < 0.8:
        return damaged(rng, text)
    deep = rng.choice(
        (
            nested_json(100),
            nested_json(5000),
            nested_json(100_000),
            b"[" * 100_000,
            nested_json(3000, b'{"a":', b"}"),
        )
    )
    return rng.choice(
        (
            deep,
            text[:-1] + b', "more": ' + deep + b"}",
            text.replace(b": 1", b": 1" + b"0" * 5000),
            text.replace(b": 1", b": 1e999"),
            text.replace(b": 1", b": NaN"),
            text.replace(b'": "', b'": "\\ud800', 1),
            text.replace(b'": "', b'": "\\u0000\\u001b[2J'),
            text[:-1] + b"," + text[1:],
        )
    )


def odd_records(rng: random.Random, lines: list[bytes]) -> bytes:
    """Return records of which some lines are not what they should be."""
    kept = rng.sample(lines, min(len(lines), rng.choice((3, 20, 60))))
    kept.sort(key=lines.index)
    choice = rng.random()
    if choice < 0.15:
        return damaged(rng, b"\n".join(kept))
    if choice < 0.2:
        rng.shuffle(kept)
        return b"\n".join(kept)
    if choice < 0.3:
        return b"\n".join(odd_json(rng, json.loads(line)) if rng.random() < 0.3 else line for line in kept)
    for _ in range(
        rng.choice((1, 2, 5))
    ):  # all of them of the right types, so that what is made of them is reached
        place = rng.randrange(len(kept))
        kept[place] = json.dumps(_same_kind(rng, json.loads(kept[place]))).encode()
    return b"\n".join(kept) + b"\n"


def _same_kind(rng: random.Random, value: Any) -> Any:
    """Return the value with some of its numbers and texts odd ones, which a schema does not refuse."""
    for _ in range(rng.choice((1, 2, 6))):
        places = [(container, key) for container, key in _places(value) if not isinstance(container[key], dict | list) and key != "kind"]  # fmt: skip
        container, key = rng.choice(places)
        before = container[key]
        if isinstance(before, bool) or before is None:
            container[key] = rng.choice((True, False, None))
        elif isinstance(before, int):
            container[key] = rng.choice(INTEGERS)
        elif isinstance(before, float):
            container[key] = rng.choice((*FLOATS[:7], 1e308, -1e308, 5e-324))
        else:
            container[key] = rng.choice(TEXTS)
    lists = [(container, key) for container, key in _places(value) if isinstance(container[key], dict | list)]
    if lists and rng.random() < 0.3:
        container, key = rng.choice(lists)
        container[key] = type(container[key])()
    return value


# --- TOML ---------------------------------------------------------------------------------------------------------

SETTINGS = """
runtime = ["onnx-reference"]
seed = 3
threads = 1
fail_fast = false
time_limit_s = 20.0
known = "known.toml"
session_option = { "session.disable_prepacking" = true }
[runtimes."own"]
runtime = "onnx-reference"
time_limit_s = 60
"""
KNOWN = """
[[known]]
model = "mha"
variant = ["attention", "decomposed"]
runtime = "*"
case = ["*overflow*"]
issue = "counter-example"
note = "a note"
"""
_ODD_TOML = (
    "true", "-1", "1e400", "nan", "inf", "0x" + "f" * 50, "9" * 5000, '""', '"\\u0000"', "[]", "{}", "[" * 3000 + "]" * 3000, "1979-05-27",
    '"' + "x" * 100_000 + '"', "{ a = { b = { c = 1 } } }", "[[[]]]", "'../../x'", '"/dev/zero"', '"\\u001b[2J"', '["a", 1, {}]',
)  # fmt: skip


def odd_toml(rng: random.Random, text: str) -> bytes:
    """Return TOML with odd values, keys or tables; or what is none."""
    lines = text.strip().splitlines()
    choice = rng.random()
    if choice < 0.25:
        return damaged(rng, text.encode())
    if choice < 0.35:
        return rng.choice(
            (
                ("a = " + "[" * 5000).encode(),
                (".".join("a" * 20_000) + " = 1").encode(),
                ("[" + ".".join("a" * 20_000) + "]").encode(),
                b"a = {" + b"a = {" * 3000,
                b"".join(b"k%d = 1\n" % number for number in range(20_000)),
                b'"\\ud800" = 1',
                b"\xff = 1",
                b"runtime = [" + b'"x",' * 20_000 + b"]",
            )
        )
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(lines))
        key, equals, _ = lines[place].partition(" = ")
        if equals and rng.random() < 0.8:
            lines[place] = f"{key} = {rng.choice(_ODD_TOML)}"
        elif rng.random() < 0.5:
            lines.insert(place, rng.choice(lines))
        else:
            del lines[place]
            if not lines:
                break
    return "\n".join(lines).encode()


# --- arrays -------------------------------------------------------------------------------------------------------


def npy(header: bytes, data: bytes, version: bytes = b"\x01\x00") -> bytes:
    """Return a member of an .npz with a header of one's own."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(header) % 65536) + header + data


def _bytes_of(array: np.ndarray, *, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


_HEADERS = (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 5, 4), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 1000000000, 4), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 5, 4), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2.5, 5, 4), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 5, 4), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    b"{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (2,), }",
    b"{'descr': '<U1000000000', 'fortran_order': False, 'shape': (2,), }",
    b"{'descr': '|V2000000000', 'fortran_order': False, 'shape': (0,), }",
    b"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,), }",
    b"{'descr': 'f4,(3,)f4', 'fortran_order': False, 'shape': (2,), }",
    b"{'descr': 5, 'fortran_order': 'x', 'shape': None}",
    b"(" * 3000,
    b"{" * 100,
    b"[" + b"-" * 9000 + b"1]",
    b"__import__('os').system('true')",
    b"\xff\xfe\x00",
    b"",
)


def odd_npz(rng: random.Random, arrays: dict[str, np.ndarray]) -> bytes:
    """Return an .npz that is not what it should be."""
    members = {f"{name}.npy": _bytes_of(array) for name, array in arrays.items()}
    name = rng.choice(sorted(members))
    compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    choice = rng.randrange(9)
    if choice == 0:
        members[name] = damaged(rng, members[name])
    elif choice == 1:
        members[name] = npy(
            rng.choice(_HEADERS),
            rng.randbytes(rng.choice((0, 8, 160))),
            rng.choice((b"\1\0", b"\2\0", b"\3\0", b"\xff\xff")),
        )
    elif choice == 2:
        objects = np.empty(2, object)
        objects[:] = [print, "text"]
        members[name] = _bytes_of(objects, pickled=True)
    elif choice == 3:
        return bomb(rng.choice((2**20, 2**26)), name)
    elif choice == 4:
        odd_arrays = (np.zeros((0, 4), np.float32), np.zeros((), np.float32), np.zeros((2, 5, 4), np.complex64), np.array(["x"]), np.zeros((2, 5, 4), ">f4"), np.full((2, 5, 4), np.nan, np.float32), np.zeros((1,) * 60, np.float32))  # fmt: skip
        members[name] = _bytes_of(rng.choice(odd_arrays))
    elif choice == 5:
        members[
            rng.choice(
                (
                    "../../escaped.npy",
                    "/tmp/escaped.npy",
                    "x",
                    "x.npy.npy",
                    "a\\b.npy",
                    *(f"{text}.npy" for text in TEXTS),
                )
            )
        ] = members[name]
    elif choice == 6:
        del members[name]
    data = packed(members, compression)
    if choice == 7:
        return damaged(rng, data)
    if choice == 8:  # sizes, methods and flags in the list of members
        changed_ = bytearray(data)
        place = data.rfind(b"PK\x01\x02") + rng.choice((6, 8, 10, 16, 20, 24, 28, 42))
        changed_[place : place + 2] = rng.choice((b"\0\0", b"\xff\xff", b"\1\0", b"\x63\0", b"\x0e\0"))
        return bytes(changed_)
    return data


def packed(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip of members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def bomb(size: int, name: str = "x.npy") -> bytes:
    """Return an .npz with so many zeros, which take a thousandth of it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size // 4},), }}".encode()
    return packed({name: npy(header, b"\0" * size)}, zipfile.ZIP_DEFLATED)


def odd_tensor(rng: random.Random, array: np.ndarray, name: str) -> bytes:
    """Return an input_0.pb that is not what it should be."""
    tensor = numpy_helper.from_array(array, name)
    if rng.random() < 0.3:
        return damaged(rng, tensor.SerializeToString())
    if rng.random() < 0.3:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key in ("location", "offset", "length"):
            tensor.external_data.add(
                key=key, value=rng.choice(("../x", "/dev/zero", "input_0.pb", "-1", "9" * 20, *TEXTS))
            )
    for _ in range(rng.choice((1, 3))):
        change_a_field(rng, tensor)
    return bytes(tensor.SerializeToString())


# --- folders ------------------------------------------------------------------------------------------------------


def sign(folder: Path) -> None:
    """Write the list of digests of a bundle anew, so that what is in it is reached."""
    lines = [
        (path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text(
        "".join(f"{digest}  {name}\n" for name, digest in sorted(lines)), errors="surrogateescape"
    )


def spoil_bundle(rng: random.Random, folder: Path, model: Callable[[random.Random], bytes]) -> str:
    """Change one thing in a bundle, half the time with digests that hold, and return what it was."""
    about = folder / "bundle.json"
    sets = sorted(folder.glob("test_data_set_*/reference.npz"))
    choice = rng.randrange(7)
    resigned = rng.random() < 0.7
    if choice in (0, 1):
        about.write_bytes(odd_json(rng, json.loads(about.read_text())))
    elif choice == 2 and sets:
        path = rng.choice(sets)
        with np.load(path) as file:
            path.write_bytes(odd_npz(rng, dict(file)))
    elif choice == 3:
        data = model(rng)
        (folder / "model.onnx").write_bytes(data)
        told = json.loads(about.read_text()) | {"sha256": hashlib.sha256(data).hexdigest()}
        about.write_text(json.dumps(told))
    elif choice == 4:
        extra = folder / rng.choice(("extra", "sub", ".hidden", "\n", "a b", "é"))
        kind = rng.randrange(4)
        if kind == 0:
            extra.symlink_to("/etc/hostname")
        elif kind == 1:
            os.mkfifo(extra)
        elif kind == 2:
            extra.mkdir()
        else:
            extra.write_bytes(b"extra")
    elif choice == 5:
        victim = rng.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
        victim.unlink()
        if rng.random() < 0.5:
            os.mkfifo(victim) if rng.random() < 0.5 else victim.symlink_to("/dev/zero")
    else:
        victim = rng.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
        victim.write_bytes(damaged(rng, victim.read_bytes()))
    if resigned and choice != 5:
        sign(folder)
    sums = folder / "SHA256SUMS"
    if choice == 6 and not resigned and sums.is_file():
        sums.write_bytes(damaged(rng, sums.read_bytes()))
    return "bundle, digests hold" if resigned else "bundle"
