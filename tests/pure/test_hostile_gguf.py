"""Damaged and hostile GGUF files: each is refused with one sentence, quickly, in little memory.

Groups follow what other readers got wrong: counts, lengths, nesting, alignment, placement of
tensors, versions, things that are no files. At the end, mutated and truncated files (hypothesis).
"""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divine.errors import DivineError, FormatError, UnsupportedError, UsageError
from divine.gguf import open_gguf, typed
from tiny_models import split_gguf, tiny_llama

HUGE = [2**63, 2**64 - 1, 2**64 // 72 + 1, 2**40]
U8, I8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def string(text: bytes) -> bytes:
    return u64(len(text)) + text


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + u32(version) + u64(tensors) + u64(keys)


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + u32(kind) + value


def info(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return string(name) + u32(len(dims)) + b"".join(u64(d) for d in dims) + u32(kind) + u64(offset)


ARCHITECTURE = entry(b"general.architecture", STRING, string(b"llama"))


def refused(path: Path, content: bytes, kind: type[DivineError] = FormatError) -> str:
    """Open a file that must be refused; return the sentence."""
    path.write_bytes(content)
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(kind) as caught:
            open_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 2
    assert peak < 1_000_000 + 4 * len(content)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile.gguf"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", layers=1).read_bytes()


class TestCounts:
    @pytest.mark.parametrize("count", HUGE)
    def test_huge_counts(self, path, count):
        assert f"declares {count} tensors; at most 0 are" in refused(path, header(count, 0))
        assert f"declares {count} keys; at most 0 are" in refused(path, header(0, count))

    def test_counts_that_fill_the_file(self, path):
        message = refused(path, header(0, 3) + bytes(38))
        assert "declares 3 keys; at most 2 are possible" in message

    @pytest.mark.parametrize("offset", [8, 16])
    def test_one_more_than_there_are(self, path, tiny, offset):
        (count,) = struct.unpack_from("<Q", tiny, offset)
        refused(path, tiny[:offset] + u64(count + 1) + tiny[offset + 8 :])

    def test_more_keys_than_any_model_has(self, path):
        content = header(0, 100_000) + b"".join(entry(b"%d" % n, U8, b"0") for n in range(100_000))
        assert "declares 100000 keys; at most 65536" in refused(path, content)

    @pytest.mark.parametrize("length", range(24))
    def test_headers_cut_short(self, path, length):
        refused(path, header(0, 0)[:length] or b"x")


class TestLengths:
    LENGTHS = (0xFFFFFFFFFFFF, 2**63, 2**64 - 1, 1)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_keys(self, path, length):
        padding = bytes(13) if length != 1 else b"k" + bytes(4)
        refused(path, header(0, 1) + u64(length) + padding)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_values(self, path, length):
        content = header(0, 1) + string(b"key") + u32(STRING) + u64(length)
        assert "a string in key 'key'" in refused(path, content)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_elements(self, path, length):
        array = u32(STRING) + u64(3) + string(b"a") + string(b"b") + u64(length)
        assert "'key'" in refused(path, header(0, 1) + entry(b"key", ARRAY, array))

    @pytest.mark.parametrize("length", LENGTHS)
    def test_tensor_names(self, path, length):
        padding = bytes(16) if length != 1 else b"n" + bytes(15)
        refused(path, header(1, 1) + ARCHITECTURE + u64(length) + padding)

    def test_long_text_is_shortened_in_messages(self, path):
        content = header(0, 1) + entry(b"k" * 50_000, 99, b"")
        assert len(refused(path, content)) < 400

    @pytest.mark.parametrize("name", [b"\xff\xfe", b""])
    def test_names_that_are_no_text(self, path, name):
        refused(path, header(0, 1) + entry(name, U8, b"1"))
        refused(path, header(1, 0) + info(name, [1], 0, 0) + bytes(100))


class TestArrays:
    @pytest.mark.parametrize(
        ("element", "count"),
        [(U64, 2**61 + 1), (U32, 2**63), (STRING, 2**63), (ARRAY, 2**63), (U8, 2**64 - 1)],
    )
    def test_sizes_that_wrap(self, path, element, count):
        array = u32(element) + u64(count) + bytes(8)
        content = header(0, 2) + entry(b"a", ARRAY, array) + ARCHITECTURE
        assert f"declares {count} values" in refused(path, content)

    @pytest.mark.parametrize("element", [13, 255, 2**32 - 1])
    def test_unknown_types(self, path, element):
        array = u32(element) + u64(3) + bytes(24)
        message = refused(path, header(0, 2) + entry(b"a", ARRAY, array) + ARCHITECTURE)
        assert f"element type {element} for key 'a'; allowed are 0 to 12" in message
        refused(path, header(0, 1) + entry(b"a", element, bytes(24)))

    def test_deep_nesting(self, path):
        deep = (u32(ARRAY) + u64(1)) * 5000 + u32(U32) + u64(1) + u32(7)
        message = refused(path, header(0, 2) + entry(b"deep", ARRAY, deep) + ARCHITECTURE)
        assert "deeper than 4 levels in key 'deep'" in message

    def test_two_levels_are_read(self, path):
        inner = [u32(U32) + u64(1) + u32(number) for number in (1, 2)]
        array = u32(ARRAY) + u64(2) + b"".join(inner)
        path.write_bytes(header(0, 2) + entry(b"deep", ARRAY, array) + ARCHITECTURE)
        with open_gguf(path) as file:
            assert dict(file.metadata) == {"deep": [[1], [2]], "general.architecture": "llama"}

    @pytest.mark.parametrize("count", [3_000_000, 5_000_000])
    def test_millions_of_empty_arrays_take_no_time(self, path, count):
        array = u32(ARRAY) + u64(count) + (u32(U8) + u64(0)) * count
        path.write_bytes(header(0, 1) + entry(b"a", ARRAY, array))
        started = time.perf_counter()
        with pytest.raises(FormatError, match=f"declares {count} values of type array"):
            open_gguf(path)
        assert time.perf_counter() - started < 2

    @pytest.mark.parametrize("value", [bytes([2]), bytes([255])])
    def test_bools_that_are_none(self, path, value):
        assert "neither 0 nor 1" in refused(path, header(0, 1) + entry(b"b", BOOL, value))
        array = u32(BOOL) + u64(2) + b"\1" + value
        assert "neither 0 nor 1" in refused(path, header(0, 1) + entry(b"b", ARRAY, array))


class TestTensors:
    def test_truncated_data(self, path, tiny):
        with_data = open_length(path, tiny)
        for length in (len(tiny) // 2, with_data - 1):
            message = refused(path, tiny[:length])
            assert "truncated" in message or "ends" in message
        with open_tiny(path, tiny) as file:
            start = min(tensor.offset for tensor in file.tensors.values())
        assert f"the file has {start} bytes" in refused(path, tiny[:start])

    @pytest.mark.parametrize(
        ("offset", "message"),
        [
            (4, "no multiple of the alignment 32"),
            (1 << 20, "is truncated or damaged: tensor 'x' ends at byte"),
            (2**64 - 32, "is truncated or damaged"),
        ],
    )
    def test_offsets(self, path, offset, message):
        content = header(1, 0) + info(b"x", [8], 0, offset) + bytes(200)
        assert message in refused(path, content)

    def test_overlaps(self, path):
        infos = info(b"a", [16], 0, 0) + info(b"b", [8], 0, 32)
        assert "overlap: 'a' and 'b'" in refused(path, header(2, 0) + infos + bytes(500))

    @pytest.mark.parametrize(
        "dims", [[2**63], [2**32, 2**32], [2**62, 4], [2**64 - 1, 2**64 - 1], [0, 2**63]]
    )
    def test_sizes_that_wrap(self, path, dims):
        refused(path, header(1, 0) + info(b"x", dims, 0, 0) + bytes(100))

    @pytest.mark.parametrize("count", [5, 9, 2**32 - 1])
    def test_dimensions(self, path, count):
        content = header(1, 0) + string(b"x") + u32(count) + bytes(60)
        assert f"has {count} dimensions for tensor 'x'; at most 4" in refused(path, content)

    def test_scalars_are_read(self, path):
        path.write_bytes(header(1, 0) + info(b"x", [], 0, 0) + bytes(100))
        with open_gguf(path) as file:
            assert file.shape("x") == ()
            assert file.raw("x").nbytes == 4

    @pytest.mark.parametrize(
        ("kind", "dims", "message"),
        [
            (2, [33], "rows of 33 values in tensor 'x'; type Q4_0 needs a multiple of 32"),
            (12, [32, 8], "type Q4_K needs a multiple of 256"),
            (8, [], "scalar of type Q8_0"),
        ],
    )
    def test_rows_that_are_no_blocks(self, path, kind, dims, message):
        content = header(1, 0) + info(b"x", dims, kind, 0) + bytes(500)
        assert message in refused(path, content)

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            (4, "type Q4_2, which was withdrawn"),
            (31, "type Q4_0_4_4, which was withdrawn"),
            (43, "unknown type number 43"),
            (2**32 - 1, "unknown type number 4294967295"),
        ],
    )
    def test_types(self, path, kind, message):
        content = header(1, 0) + info(b"x", [256], kind, 0) + bytes(2000)
        assert message in refused(path, content, UnsupportedError)

    def test_types_without_kernels_can_be_looked_at(self, path):
        path.write_bytes(header(1, 0) + info(b"x", [256], 16, 0) + bytes(200))
        with open_gguf(path) as file:
            assert file.block_type("x") == "IQ2_XXS"
            assert file.tensors["x"].nbytes == 66

    def test_duplicates(self, path):
        infos = info(b"x", [8], 0, 0) + info(b"x", [8], 0, 32)
        assert "tensor 'x' twice" in refused(path, header(2, 0) + infos + bytes(200))
        keys = entry(b"general.architecture", STRING, string(b"qwen2")) + ARCHITECTURE
        assert "key 'general.architecture' twice" in refused(path, header(0, 2) + keys)


def open_tiny(path: Path, content: bytes):
    path.write_bytes(content)
    return open_gguf(path)


def open_length(path: Path, content: bytes) -> int:
    """Where the data of the last tensor end."""
    with open_tiny(path, content) as file:
        return max(tensor.offset + tensor.nbytes for tensor in file.tensors.values())


class TestAlignment:
    @pytest.mark.parametrize("alignment", [0, 3, 24, 2**31, 2**17])
    def test_values(self, path, alignment):
        content = header(0, 1) + entry(b"general.alignment", U32, u32(alignment))
        assert f"general.alignment = {alignment}; it must be a power of two" in refused(
            path, content
        )

    @pytest.mark.parametrize(
        ("kind", "value", "label"),
        [(I32, u32(32), "i32"), (U64, u64(32), "u64"), (STRING, string(b"32"), "string")],
    )
    def test_types(self, path, kind, value, label):
        content = header(0, 1) + entry(b"general.alignment", kind, value)
        assert f"general.alignment as {label}; it must be u32" in refused(path, content)

    @pytest.mark.parametrize("alignment", [8, 64])
    def test_other_alignments_hold_the_same_data(self, tmp_path, alignment):
        usual = tiny_llama(tmp_path / "usual.gguf")
        other = tiny_llama(tmp_path / "other.gguf", alignment=alignment)
        with open_gguf(usual) as one, open_gguf(other) as two:
            for name in one.tensors:
                np.testing.assert_array_equal(one.raw(name), two.raw(name))


class TestKinds:
    @pytest.mark.parametrize("version", [0, 1, 4, 2**32 - 1])
    def test_versions(self, path, version):
        message = refused(path, header(0, 0, version), UnsupportedError)
        assert f"GGUF version {version} is not supported; supported are 2 and 3" in message

    def test_big_endian(self, path):
        content = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
        assert "big-endian GGUF (version 3)" in refused(path, content, UnsupportedError)
        assert "big-endian" in refused(path, b"FUGG" + bytes(40))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"GGML" + bytes(40), "old GGML file"),
            (b"tjgg" + bytes(40), "old GGJT file"),
            (b"<!doctype html><html>", "HTML"),
            (b"\n <html>", "HTML"),
            (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
            (b"PK\x03\x04" + bytes(40), "zip archive"),
            (b"\x00\x01\x02\x03", "begins with '\\x00\\x01\\x02\\x03'"),
            (b"GG", "begins with 'GG'"),
        ],
    )
    def test_other_files(self, path, content, message):
        found = refused(path, content)
        assert "is not a GGUF file: " in found
        assert message in found

    def test_an_empty_file(self, path):
        assert "is empty" in refused(path, b"")

    def test_things_that_are_no_files(self, tmp_path):
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        for thing, message in (
            (tmp_path, "is a folder"),
            (fifo, "is not a regular file"),
            (Path("/dev/zero"), "is not a regular file"),
        ):
            with pytest.raises(FormatError, match=message):
                open_gguf(thing)

    def test_paths_that_cannot_be_opened(self, tmp_path):
        with pytest.raises(UsageError, match="there is no such file"):
            open_gguf(tmp_path / "nope.gguf")
        with pytest.raises(UsageError, match="cannot be opened"):
            open_gguf(tmp_path / ("x" * 5000))
        with pytest.raises(UsageError, match="cannot be opened"):
            open_gguf("a\0b")


class TestSplitKeys:
    @pytest.mark.parametrize("value", ["3", typed("f32", 3.0), typed("[u16]", [3]), 100_000])
    def test_types(self, tmp_path, value):
        path = tiny_llama(tmp_path / "t.gguf", metadata_overrides={"split.count": value})
        with pytest.raises(FormatError, match=r"split\.count"):
            open_gguf(path)

    def test_every_file_is_closed_when_one_is_bad(self, tmp_path):
        shards = split_gguf(tiny_llama(tmp_path / "t.gguf"), 3)
        shards[2].write_bytes(shards[2].read_bytes()[:-200])
        before = open_handles()
        for _ in range(3):
            with pytest.raises(FormatError, match="00003-of-00003"):
                open_gguf(shards[0])
        assert open_handles() == before


def open_handles() -> int | None:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else None


def exercise(path: Path, content: bytes) -> None:
    """Open and read everything; only DivineError may come out."""
    path.write_bytes(content)
    try:
        file = open_gguf(path)
    except DivineError:
        return
    with file:
        dict(file.metadata)
        for name in file.tensors:
            assert file.raw(name).nbytes == file.tensors[name].nbytes
            file.release(name)


fuzz = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@fuzz
@given(
    edits=st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),
            st.sampled_from([1, 4, 8]),
            st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 9, 2**31, *HUGE])),
        ),
        min_size=1,
        max_size=4,
    ),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
def test_mutated_files(path, tiny, edits, cut):
    # Most edits go to the header: the data of a tensor may be anything.
    content = bytearray(tiny)
    for place, width, number in edits:
        at = int(place * min(len(content), 12_000))
        content[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    if cut is not None:
        del content[int(cut * len(content)) :]
    exercise(path, bytes(content))


@fuzz
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=6),
            st.integers(0, 14),
            st.one_of(
                st.binary(max_size=20),
                st.builds(
                    lambda element, count, rest: u32(element) + u64(count) + rest,
                    st.integers(0, 14),
                    st.integers(0, 5),
                    st.binary(max_size=60),
                ),
            ),
        ),
        max_size=4,
    ),
    st.integers(0, 3),
    st.binary(max_size=100),
)
def test_random_headers(path, entries, tensors, rest):
    content = b"".join(entry(key, kind, value) for key, kind, value in entries)
    exercise(path, header(tensors, len(entries)) + content + rest)
