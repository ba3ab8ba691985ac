"""Reading and writing GGUF files: round trips, getters, splits; the gguf package as oracle."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from divine.errors import CapacityError, FormatError, UsageError
from divine.gguf import TensorData, copy_metadata, copy_tensors, open_gguf, typed, write_gguf
from tiny_models import split_gguf, tiny_llama, tiny_vocabulary

EVERYTHING = {
    "general.architecture": "llama",
    "u8": typed("u8", 255),
    "i8": typed("i8", -128),
    "u16": typed("u16", 65535),
    "i16": typed("i16", -32768),
    "u32": typed("u32", 2**32 - 1),
    "i32": typed("i32", -(2**31)),
    "f32": typed("f32", 0.1),
    "true": True,
    "false": False,
    "string": "naïve ☃",
    "empty string": "",
    "not utf-8": b"ok\xff\xfe",
    "u64": typed("u64", 2**64 - 1),
    "i64": typed("i64", -(2**63)),
    "f64": typed("f64", 0.1),
    "[bool]": [True, False, True],
    "[string]": ["a", "", b"\xc3", "x" * 300],
    "[]": typed("[string]", []),
    "[u8]": typed("[u8]", [1, 2, 3]),
    "[f64]": typed("[f64]", [1.5, -2.5]),
    "nested": typed("[[u32]]", [[1], [], [2, 3]]),
    "nested strings": typed("[[string]]", [["a"], [], ["b", "c"]]),
    "last": typed("u32", 7),
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf")


def test_every_type_survives_to_the_byte(tmp_path):
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    tensors = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 4), "f4")}
    write_gguf(first, EVERYTHING, tensors)
    with open_gguf(first) as file:
        assert list(file.metadata) == list(EVERYTHING)
        assert file.metadata["u64"] == 2**64 - 1
        assert file.metadata["i64"] == -(2**63)
        assert file.metadata["f32"] == np.float32(0.1)
        assert file.metadata["f64"] == 0.1
        assert file.metadata["true"] is True
        assert file.metadata["string"] == "naïve ☃"
        assert file.metadata["not utf-8"] == "ok\ufffd\ufffd"
        assert file.metadata["[string]"] == ["a", "", "\ufffd", "x" * 300]
        assert file.metadata["[bool]"] == [True, False, True]
        assert file.metadata["nested"] == [[1], [], [2, 3]]
        assert file.metadata["nested strings"] == [["a"], [], ["b", "c"]]
        assert file.metadata["last"] == 7
        assert file.metadata.type_name("[u8]") == "[u8]"
        assert file.metadata.length("[f64]") == 2
        assert file.metadata.length("u8") is None
        write_gguf(second, copy_metadata(file), copy_tensors(file))
    assert first.read_bytes() == second.read_bytes()


def test_a_nan_keeps_its_payload(tmp_path):
    path = tmp_path / "nan.gguf"
    write_gguf(path, {"pad": 1, "nan": np.array([0x7FA12345], np.uint32).view(np.float32)}, {})
    with open_gguf(path) as file:
        assert file.metadata.typed("nan").payload[-4:] == bytes.fromhex("4523a17f")
        assert np.isnan(file.metadata["nan"][0])


def test_the_gguf_package_reads_what_we_write(tmp_path):
    path = tiny_llama(tmp_path / "t.gguf", metadata_overrides={"flag": [True, False]})
    reader = gguf.GGUFReader(path)
    with open_gguf(path) as file:
        for key in file.metadata:
            assert reader.fields[key].contents() == file.metadata[key], key
        assert [t.name for t in reader.tensors] == list(file.tensors)
        for tensor in reader.tensors:
            info = file.tensors[tensor.name]
            assert tuple(tensor.shape.tolist()[::-1]) == info.shape
            assert tensor.tensor_type.name == info.block_type
            assert tensor.data_offset == info.offset
            assert tensor.n_bytes == info.nbytes
            np.testing.assert_array_equal(
                tensor.data.reshape(-1).view(np.uint8), file.raw(info.name)
            )


def test_we_read_what_the_gguf_package_writes(tmp_path):
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_uint32("n", 5)
    writer.add_array("scores", [0.5, 1.5])
    writer.add_array("texts", ["a", "ß"])
    writer.add_tensor("w", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as file:
        assert dict(file.metadata) == {
            "general.architecture": "qwen2",
            "n": 5,
            "scores": [0.5, 1.5],
            "texts": ["a", "ß"],
        }
        assert file.shape("w") == (3, 4)
        assert file.raw("w").view("f4").tolist() == list(range(12))


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096])
@pytest.mark.parametrize("version", [2, 3])
def test_alignments_and_versions(tmp_path, alignment, version):
    tensors = {f"t{n}": np.full(n, n, np.int8) for n in range(1, 40)}
    write_gguf(tmp_path / "a", {"k": 1}, tensors, alignment=alignment, version=version)
    with open_gguf(tmp_path / "a") as file:
        assert (file.version, file.alignment) == (version, alignment)
        assert file.metadata.get("general.alignment", 32) == alignment
        assert file.data_nbytes == sum(range(1, 40))
        for name, values in tensors.items():
            assert file.tensors[name].offset % alignment == 0
            assert file.raw(name).view("i1").tolist() == values.tolist()


def test_weights_are_read_only_and_survive_replacement_and_closing(tiny, tmp_path):
    file = open_gguf(tiny)
    view = file.raw("output_norm.weight")
    before = view.copy()
    assert not view.flags.writeable
    tiny_llama(tmp_path / "other.gguf", seed=9).replace(tiny)
    file.release("output_norm.weight")
    file.release("token_embd.weight")
    np.testing.assert_array_equal(view, before)
    np.testing.assert_array_equal(file.raw("output_norm.weight"), before)
    file.close()
    np.testing.assert_array_equal(view, before)


def test_released_pages_leave_the_memory_and_come_back(tmp_path):
    values = np.arange(1 << 20, dtype=np.int32)
    write_gguf(tmp_path / "big", {"k": 1}, {"small": np.ones(5, np.int8), "big": values})

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE

    with open_gguf(tmp_path / "big") as file:
        assert file.raw("big").sum() > 0
        before = resident()
        file.release("big")
        if Path("/proc/self/statm").exists():
            assert resident() < before - values.nbytes // 2
        assert (file.raw("big").view("i4") == values).all()


def test_a_file_cut_while_open_is_noticed(tiny):
    with open_gguf(tiny) as file:
        os.truncate(tiny, 4096)
        with pytest.raises(FormatError, match="was cut from"):
            file.raw("output_norm.weight")
        with pytest.raises(FormatError, match="was cut from"):
            file.metadata["tokenizer.ggml.tokens"]


def test_a_missing_tensor_is_named(tiny):
    with open_gguf(tiny) as file, pytest.raises(FormatError, match="'nope' is missing"):
        file.raw("nope")


def test_strings_are_the_same_however_many(tmp_path):
    texts = [b"a", b"", b"\xff\xff", "\U0001f9e1".encode(), b"\xf4\x8f\xbf", b"\0" * 9] * 20
    broken = [*texts, "a\U0010ffff".encode()]  # holds the separator: the slow way
    write_gguf(tmp_path / "s", {"few": texts[:6], "many": texts, "slow": broken}, {})
    with open_gguf(tmp_path / "s") as file:
        for key, expected in (("few", texts[:6]), ("many", texts), ("slow", broken)):
            assert file.metadata.strings_bytes(key) == expected
            assert file.metadata.strings(key) == [t.decode("utf-8", "replace") for t in expected]
        assert file.metadata.first("many", 3) == ["a", "", "\ufffd\ufffd"]


class TestGetters:
    @pytest.fixture
    def metadata(self, tmp_path):
        more = {"inf": float("inf"), "[nan]": [1.0, float("nan")], "[i32]": [1, 2]}
        write_gguf(tmp_path / "m.gguf", EVERYTHING | more, {})
        with open_gguf(tmp_path / "m.gguf") as file:
            yield file.metadata

    def test_values(self, metadata):
        assert metadata.int("i8") == -128
        assert metadata.float("f64") == 0.1
        assert metadata.float("u8") == 255.0
        assert metadata.str("string") == "naïve ☃"
        assert metadata.bool("false") is False
        assert metadata.ints("[u8]") == [1, 2, 3]
        assert metadata.ints("[i32]", 2) == [1, 2]
        assert metadata.ints("last", 3) == [7, 7, 7]
        assert metadata.floats("f64", 2) == [0.1, 0.1]
        assert metadata.floats("[f64]") == [1.5, -2.5]
        assert metadata.bools("[bool]", 3) == [True, False, True]
        assert metadata.bools("true", 2) == [True, True]
        assert metadata.strings("[]") == []

    def test_defaults(self, metadata):
        assert metadata.int("absent", None) is None
        assert metadata.float("absent", 2.5) == 2.5
        assert metadata.str("absent", "x") == "x"
        assert metadata.bool("absent", True) is True
        assert metadata.ints("absent", 4, default=None) is None
        assert metadata.floats("absent", default=[1.0]) == [1.0]
        assert metadata.strings("absent", default=[]) == []
        assert metadata.strings_bytes("absent", default=None) is None

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda m: m.int("absent"), r"m\.gguf: the metadata key 'absent' .* is missing"),
            (lambda m: m.int("string"), "'string' is string 'naïve ☃'; it must be an integer"),
            (lambda m: m.int("true"), "'true' is bool True; it must be an integer"),
            (lambda m: m.int("f32"), "must be an integer"),
            (lambda m: m.int("[u8]"), "'\\[u8\\]' is an array of 3 u8; it must be an integer"),
            (lambda m: m.int("last", minimum=8), "'last' is 7; it must be an integer at least 8"),
            (
                lambda m: m.int("last", minimum=1, maximum=6),
                "it must be an integer at least 1 and at most 6",
            ),
            (lambda m: m.float("inf"), "'inf' is inf; it must be a finite number"),
            (lambda m: m.float("string"), "must be a number"),
            (lambda m: m.float("f64", maximum=0.05), "must be a finite number at most 0.05"),
            (lambda m: m.str("u8"), "'u8' is u8 255; it must be a string"),
            (lambda m: m.bool("u8"), "it must be a bool"),
            (lambda m: m.ints("[u8]", 2), "an array of 3 u8; it must be 2 integers, or one for"),
            (lambda m: m.ints("last"), "'last' is u32 7; it must be integers"),
            (lambda m: m.ints("[f64]"), "an array of 2 f64; it must be integers"),
            (lambda m: m.ints("[u8]", maximum=2), "is 3; it must be integers at most 2"),
            (lambda m: m.ints("last", 2**40), "more than the 65536 allowed"),
            (lambda m: m.floats("[string]", 4), "array of 4 string; it must be 4 numbers"),
            (
                lambda m: m.floats("[nan]"),
                "'\\[nan\\]' is not finite everywhere; it must be finite",
            ),
            (lambda m: m.bools("[u8]"), "must be bools"),
            (lambda m: m.strings("[u8]"), "it must be an array of strings"),
            (lambda m: m.strings("string"), "it must be an array of strings"),
            (lambda m: m.strings_bytes("nested"), "must be an array of strings"),
        ],
    )
    def test_errors(self, metadata, call, message):
        with pytest.raises(FormatError, match=message):
            call(metadata)


class TestSplits:
    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_any_shard_opens_all(self, tiny, number):
        shards = split_gguf(tiny, 3)
        with open_gguf(tiny) as whole, open_gguf(shards[number]) as file:
            assert file.paths == tuple(shards)
            assert file.path == shards[0]
            assert file.metadata["general.name"] == "tiny llama"
            assert list(file.tensors) == list(whole.tensors)
            assert file.data_nbytes == whole.data_nbytes
            assert {info.shard for info in file.tensors.values()} == {0, 1, 2}
            for name in whole.tensors:
                np.testing.assert_array_equal(file.raw(name), whole.raw(name))

    def test_a_link_elsewhere_finds_the_shards(self, tiny, tmp_path):
        shards = split_gguf(tiny, 3)
        (tmp_path / "elsewhere").mkdir()
        link = tmp_path / "elsewhere" / "model.gguf"
        link.symlink_to(shards[0])
        with open_gguf(link) as file:
            assert len(file.paths) == 3

    def test_links_under_the_right_names_to_blobs(self, tiny, tmp_path):
        (tmp_path / "blobs").mkdir()
        links = []
        for index, shard in enumerate(split_gguf(tiny, 2)):
            shard.rename(tmp_path / "blobs" / str(index))
            shard.symlink_to(tmp_path / "blobs" / str(index))
            links.append(shard)
        with open_gguf(links[1]) as file:
            assert file.paths == tuple(links)

    def test_a_missing_shard_is_named(self, tiny):
        shards = split_gguf(tiny, 3)
        shards[1].unlink()
        for shard in (shards[0], shards[2]):
            with pytest.raises(FormatError, match=r"tiny-00002-of-00003\.gguf is missing"):
                open_gguf(shard)

    def test_a_renamed_shard_is_refused(self, tiny, tmp_path):
        renamed = split_gguf(tiny, 2)[0].rename(tmp_path / "model.gguf")
        with pytest.raises(FormatError, match="split into 2 files, which must be named like"):
            open_gguf(renamed)

    def test_a_wrong_count_is_refused(self, tiny):
        shards = split_gguf(tiny, 3)
        for number, shard in enumerate(shards):
            rewrite(shard, shard, {"split.count": typed("u16", 4), "split.no": number})
        with pytest.raises(FormatError, match=r"name says 3 shards, .* says 4"):
            open_gguf(shards[0])

    def test_two_equal_numbers_are_refused(self, tiny):
        shards = split_gguf(tiny, 3)
        rewrite(shards[2], shards[2], {"split.no": typed("u16", 1)})
        with pytest.raises(FormatError, match=r"00003.*is number 2 of 3; expected was 3 of 3"):
            open_gguf(shards[0])

    def test_a_shard_of_another_model_is_refused(self, tiny, tmp_path):
        shards = split_gguf(tiny, 3)
        (tmp_path / "other").mkdir()
        larger = tiny_llama(tmp_path / "other" / "tiny.gguf", layers=3)
        split_gguf(larger, 3)[1].replace(shards[1])
        with pytest.raises(FormatError, match=r"00002.*of another model.*29 tensors.*20"):
            open_gguf(shards[0])

    def test_a_tensor_in_two_shards_is_refused(self, tiny):
        shards = split_gguf(tiny, 2)
        twice = {"token_embd.weight": np.zeros(1, "f4")}
        rewrite(shards[1], shards[1], {}, twice)
        with pytest.raises(FormatError, match="the shards hold 21 tensors"):
            open_gguf(shards[0])
        for shard in shards:
            rewrite(shard, shard, {"split.tensors.count": typed("i32", 21)})
        with pytest.raises(FormatError, match=r"'token_embd\.weight' is also in tiny-00001"):
            open_gguf(shards[0])


def rewrite(source: Path, target: Path, metadata, tensors=None) -> None:
    """Copy a single file (a shard, too) with some keys and tensors changed."""
    alone = source.with_name("alone.gguf")
    alone.write_bytes(source.read_bytes().replace(b"split.count", b"split.cou_t"))
    with open_gguf(alone) as file:
        keys = {key.replace("cou_t", "count"): v for key, v in copy_metadata(file).items()}
        write_gguf(target, keys | metadata, copy_tensors(file) | (tensors or {}))
    alone.unlink()


class TestWriter:
    def test_plain_values_get_the_usual_types(self, tmp_path):
        plain = {
            "u32": 5,
            "i32": -5,
            "i64": 2**40,
            "u64": 2**63,
            "f32": 0.5,
            "bool": True,
            "string": "s",
            "[i32]": [1, 2],
            "[i64]": [1, 2**40],
            "[f32]": [1, 2.5],
            "[bool]": (True, False),
            "[string]": ["a", b"b"],
        }
        of_numpy = {
            "bool": np.True_,
            "f64": np.float64(1.5),
            "i16": np.int16(-3),
            "[u8]": np.arange(3, dtype=np.uint8),
            "[bool]": np.array([True, False]),
        }
        for values in (plain, of_numpy):
            write_gguf(tmp_path / "t", values, {})
            with open_gguf(tmp_path / "t") as file:
                for key, value in values.items():
                    assert file.metadata.type_name(key) == key
                    assert np.array_equal(file.metadata[key], _shown(value))

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("u32", -1),
            ("u8", 256),
            ("i32", 1.5),
            ("bool", 1),
            ("u32", True),
            ("f32", "1"),
            ("string", 5),
            ("[string]", ["a", 5]),
            ("[u8]", [1, 300]),
            ("[bool]", [0, 1]),
            ("[u8]", np.arange(3)),
            ("float", 1.0),
        ],
    )
    def test_values_that_do_not_fit_are_refused(self, kind, value):
        with pytest.raises(UsageError):
            typed(kind, value)

    @pytest.mark.parametrize(
        "value", [None, [], [1, "a"], [True, 1], {}, np.zeros((2, 2)), 1 << 64]
    )
    def test_values_without_a_type_are_refused(self, tmp_path, value):
        with pytest.raises(UsageError):
            write_gguf(tmp_path / "t", {"key": value}, {})
        assert not list(tmp_path.iterdir())

    def test_tensors_are_written_by_value(self, tmp_path):
        matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
        write_gguf(tmp_path / "t", {}, {"t": matrix.T, "h": matrix.astype("f2")[:, ::2]})
        with open_gguf(tmp_path / "t") as file:
            assert file.shape("t") == (3, 2)
            assert file.raw("t").view("f4").tolist() == [0, 3, 1, 4, 2, 5]
            assert file.raw("h").view("f2").tolist() == [0, 2, 3, 5]

    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            (np.zeros(3, np.complex64), "NumPy type complex64"),
            (np.zeros((1, 1, 1, 1, 1), "f4"), "5 dimensions"),
            (TensorData("Q9", (32,), np.zeros(9, "u1")), "unknown type 'Q9'"),
            (TensorData("Q8_0", (2, 33), np.zeros(70, "u1")), "rows of 33 values"),
            (TensorData("Q8_0", (2, 32), np.zeros(67, "u1")), "67 bytes of data.*need 68"),
        ],
    )
    def test_tensors_that_cannot_be_are_refused(self, tmp_path, tensor, message):
        with pytest.raises(UsageError, match=message):
            write_gguf(tmp_path / "t", {}, {"t": tensor})
        assert not list(tmp_path.iterdir())

    def test_a_failure_leaves_the_old_file(self, tiny):
        before = tiny.read_bytes()

        def fail() -> np.ndarray:
            raise RuntimeError("the source is gone")

        bad = {"a": np.zeros(100, "f4"), "b": TensorData("F32", (2,), fail)}
        with pytest.raises(RuntimeError, match="the source is gone"):
            write_gguf(tiny, {}, bad)
        assert tiny.read_bytes() == before
        assert list(tiny.parent.iterdir()) == [tiny]

    def test_output_may_be_the_input(self, tiny):
        before = tiny.read_bytes()
        with open_gguf(tiny) as file:
            write_gguf(tiny, copy_metadata(file), copy_tensors(file))
        assert tiny.read_bytes() == before

    def test_places_that_cannot_be_written(self, tmp_path):
        with pytest.raises(UsageError, match="is a folder"):
            write_gguf(tmp_path, {}, {})
        with pytest.raises(UsageError, match="cannot be written: No such file"):
            write_gguf(tmp_path / "nowhere" / "f", {}, {})

    def test_a_full_disk(self, tmp_path, monkeypatch):
        def full(_handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CapacityError, match="No space left"):
            write_gguf(tmp_path / "f", {}, {})
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("alignment", [0, 3, 24, 2**31])
    def test_wrong_alignments(self, tmp_path, alignment):
        with pytest.raises(UsageError, match="power of two"):
            write_gguf(tmp_path / "f", {}, {}, alignment=alignment)

    def test_wrong_versions_and_names(self, tmp_path):
        with pytest.raises(UsageError, match="version 1"):
            write_gguf(tmp_path / "f", {}, {}, version=1)
        with pytest.raises(UsageError, match="must not be empty"):
            write_gguf(tmp_path / "f", {"": 1}, {})


def _shown(value):
    """What a written value is read back as."""
    if isinstance(value, list | tuple):
        return [item.decode() if isinstance(item, bytes) else item for item in value]
    return value


def test_tiny_vocabulary_is_consistent():
    tokens, types, merges = tiny_vocabulary(400)
    assert len(tokens) == len(types) == 400 == len(set(tokens))
    for merge in merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= set(tokens)
