"""The container: packed every way and read back; moved, damaged, foreign, taken out again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divine.errors import CapacityError, DivineError, FormatError, UnsupportedError, UsageError
from divine.gguf import TensorData, copy_metadata, open_gguf, typed, write_gguf
from divine.heads import DRAFT_VOCAB, HeadsDefinition, base_fingerprint
from divine.heads.card import Contents, write_card
from divine.heads.packaging import (
    Content,
    Packaging,
    additions_content,
    heads_content,
    heads_tensors,
    package,
    strip,
)
from divine.heads.section import (
    FOOTER,
    MAGIC,
    Additions,
    find_additions,
    find_section,
    open_sidecar,
)
from heads_support import FORMS, pack, random_heads
from memory_weights import MemoryWeights
from tiny_models import split_gguf, tiny_llama

PACKAGINGS: tuple[Packaging, ...] = ("appended", "sidecar", "inline")
WEIGHTS = random_heads(FORMS["best"], provenance={"command": "x", "acceptance": [0.5]})
TABLE = Content({"divine.table.order": typed("u32", 3)}, {"divine.table.rows": np.arange(7)})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "base.gguf")


def additions_of(path: Path, packaging: Packaging) -> Additions:
    if packaging == "sidecar":
        return open_sidecar(path)
    found = find_additions(open_gguf(path))
    assert found is not None
    return found


@pytest.mark.parametrize("packaging", PACKAGINGS)
@pytest.mark.parametrize("heads_type", ["f16", "q8_0", "f32"])
def test_what_is_packed_is_found(
    base: Path, tmp_path: Path, packaging: Packaging, heads_type: Any
) -> None:
    path = tmp_path / "packed.divine"
    content = heads_content(WEIGHTS, heads_type)
    content.add(TABLE, "the table")
    with open_gguf(base) as file:
        package(file, content, path, packaging)
        fingerprint = base_fingerprint(file)
    found = additions_of(path, packaging)
    assert found.packaging == packaging
    assert found.fingerprint == fingerprint
    assert found.definition() == WEIGHTS.definition
    assert found.provenance() == WEIGHTS.provenance
    np.testing.assert_array_equal(found.draft_vocab(), WEIGHTS.draft_vocab)
    expected = MemoryWeights(heads_tensors(WEIGHTS, heads_type))
    for name in expected.tensors:
        assert found.file.block_type(name) == expected.block_type(name)
        assert found.file.raw(name).tobytes() == expected.raw(name).tobytes()
    assert found.file.metadata["divine.table.order"] == 3
    assert found.file.raw("divine.table.rows").view("<i8").tolist() == list(range(7))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base.gguf", "packed.divine"]


def test_an_appended_file_is_the_base_and_a_whole_gguf(base: Path, tmp_path: Path) -> None:
    """Its own table holds the base's tensors only; behind them stands a file that opens alone."""
    path = pack(base, WEIGHTS, tmp_path / "packed.gguf")
    with open_gguf(base) as plain, open_gguf(path) as packed:
        assert list(packed.tensors) == list(plain.tensors)
        for name in plain.tensors:
            assert packed.raw(name).tobytes() == plain.raw(name).tobytes()
    place = find_section(path)
    assert place is not None
    start, length = place
    assert start % 4096 == 0
    assert start + length + FOOTER.size == path.stat().st_size
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(path.read_bytes()[start : start + length])
    with open_gguf(alone) as section:
        assert all(name.startswith("divine.") for name in section.tensors)
    assert open_sidecar(alone).definition() == WEIGHTS.definition  # a sidecar without a footer


@pytest.mark.parametrize("packaging", ["appended", "inline"])
@pytest.mark.parametrize("alignment", [None, 64])
def test_stripping_gives_the_plain_file_back(
    tmp_path: Path, packaging: Packaging, alignment: int | None
) -> None:
    base = tiny_llama(tmp_path / "base.gguf", alignment=alignment, version=2)
    path = pack(base, WEIGHTS, tmp_path / "packed.gguf", packaging)
    with open_gguf(path) as file:
        strip(file, tmp_path / "plain.gguf")
    assert (tmp_path / "plain.gguf").read_bytes() == base.read_bytes()


def test_packing_again_replaces_what_is_there(base: Path, tmp_path: Path) -> None:
    first = pack(base, WEIGHTS, tmp_path / "first.gguf")
    again = pack(first, random_heads(FORMS["paper"]), tmp_path / "again.gguf")
    other = pack(again, random_heads(FORMS["paper"]), tmp_path / "inline.gguf", "inline")
    for path in (again, other):
        found = find_additions(open_gguf(path))
        assert found is not None
        assert found.definition() == FORMS["paper"]
        assert DRAFT_VOCAB not in found.file.tensors


def test_additions_move_from_file_to_file(base: Path, tmp_path: Path) -> None:
    sidecar = pack(base, WEIGHTS, tmp_path / "heads.gguf", "sidecar")
    content = additions_content(open_sidecar(sidecar))
    with open_gguf(base) as file:
        package(file, content, tmp_path / "packed.gguf", "appended")
        package(file, content, tmp_path / "again.gguf", "sidecar")
    assert (tmp_path / "again.gguf").read_bytes() == sidecar.read_bytes()
    found = find_additions(open_gguf(tmp_path / "packed.gguf"))
    assert found is not None
    assert found.definition() == WEIGHTS.definition


@pytest.mark.parametrize("shift", [32, 4096, 31])
def test_the_section_is_found_when_the_header_has_grown(
    base: Path, tmp_path: Path, shift: int
) -> None:
    """A metadata editor that rewrites the header and copies all that follows moves the tail."""
    path = pack(base, WEIGHTS, tmp_path / "packed.gguf")
    place = find_section(path)
    assert place is not None
    tail = path.read_bytes()[place[0] :]
    edited = tmp_path / "edited.gguf"
    with open_gguf(path) as file:
        keys = {**copy_metadata(file), "general.description": "x" * 100}
        write_gguf(edited, keys, {name: _data(file, name) for name in file.tensors})
    edited.write_bytes(edited.read_bytes() + bytes(shift) + tail)
    found = find_additions(open_gguf(edited))
    assert found is not None
    found.check_base(open_gguf(edited))
    name = "divine.mtp.0.proj_up.weight"
    expected = MemoryWeights(heads_tensors(WEIGHTS))
    assert found.file.raw(name).tobytes() == expected.raw(name).tobytes()
    found.file.release(name)
    assert found.file.metadata["divine.packaging"] == "appended"


def _data(file: Any, name: str) -> TensorData:
    info = file.tensors[name]
    return TensorData(info.block_type, info.shape, file.raw(name))


# ---- damage ----


def test_a_section_that_was_dropped(base: Path, tmp_path: Path) -> None:
    path = pack(base, WEIGHTS, tmp_path / "packed.gguf")
    place = find_section(path)
    assert place is not None
    for cut in (place[0], path.stat().st_size - 1, path.stat().st_size - FOOTER.size):
        data = path.read_bytes()[:cut]
        (tmp_path / "cut.gguf").write_bytes(data)
        with (
            open_gguf(tmp_path / "cut.gguf") as file,
            pytest.raises(FormatError, match="no section"),
        ):
            find_additions(file)


def test_every_part_of_a_section_is_covered_by_the_checksum(base: Path, tmp_path: Path) -> None:
    path = pack(base, WEIGHTS, tmp_path / "packed.gguf")
    place = find_section(path)
    assert place is not None
    start, length = place
    damaged = tmp_path / "damaged.gguf"
    for at in (start, start + 100, start + length // 2, start + length - 1, start + length + 30):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        damaged.write_bytes(data)
        with open_gguf(damaged) as file, pytest.raises(FormatError, match="checksum differs"):
            find_additions(file)


def test_footers_that_lie(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "lying.gguf"
    for footer, kind, words in (
        (FOOTER.pack(MAGIC, 1, 0, 1 << 50, bytes(32)), FormatError, "should have 1125899906842624"),
        (FOOTER.pack(MAGIC, 1, 0, 0, bytes(32)), FormatError, "should have 0 bytes"),
        (FOOTER.pack(MAGIC, 2, 0, 10, bytes(32)), UnsupportedError, "is of version 2"),
        (FOOTER.pack(MAGIC, 1, 5, 10, bytes(32)), UnsupportedError, "flags 5"),
    ):
        path.write_bytes(base.read_bytes() + footer)
        with open_gguf(path) as file, pytest.raises(kind, match=words):
            find_additions(file)
    path.write_bytes(base.read_bytes() + bytes(64))
    with open_gguf(path) as file:
        assert find_additions(file) is None


def test_hostile_sections_end_in_one_sentence(base: Path, tmp_path: Path) -> None:
    """Bytes changed anywhere in a section that no checksum guards: a DivineError, or nothing."""
    sidecar = pack(base, WEIGHTS, tmp_path / "heads.gguf", "sidecar")
    data = sidecar.read_bytes()[: -FOOTER.size]
    rng = np.random.default_rng(0)
    path, faults = tmp_path / "hostile.gguf", []
    for _ in range(400):
        hostile = bytearray(data)
        for at in rng.integers(0, 1900, rng.integers(1, 4)):  # keys and tensor table
            hostile[at] = rng.choice([0, 1, 255, hostile[at] ^ 1, rng.integers(256)])
        path.write_bytes(hostile)
        try:
            found = open_sidecar(path)
            found.definition()
            found.draft_vocab()
            found.provenance()
            found.check_numbers()
            found.close()
        except DivineError as error:
            faults.append(str(error))
    assert 100 < len(faults) < 400
    assert not [fault for fault in faults if "\n" in fault]


def test_a_plain_model_has_no_additions(base: Path) -> None:
    with open_gguf(base) as file:
        assert find_additions(file) is None
    with pytest.raises(UsageError, match="has no drafting heads"):
        open_sidecar(base)
    with pytest.raises(UsageError, match="there is no such file"):
        open_sidecar(base.with_name("none.gguf"))


def test_ids_that_do_not_ascend(base: Path, tmp_path: Path) -> None:
    for ids, words in (
        (np.array([3, 2], np.int32), "must ascend"),
        (np.array([2.0, 3.0], np.float32), "of type F32; I32 is needed"),
    ):
        content = Content(
            HeadsDefinition.best(1, 32, 64, draft_vocab=2).to_keys(), {DRAFT_VOCAB: ids}
        )
        with open_gguf(base) as file:
            package(file, content, tmp_path / "x.gguf", "sidecar")
        with pytest.raises(FormatError, match=words):
            open_sidecar(tmp_path / "x.gguf").draft_vocab()


# ---- what cannot be written ----


def test_heads_for_another_base(base: Path, tmp_path: Path) -> None:
    with open_gguf(base) as file:
        made_for = base_fingerprint(file)
    weights = random_heads(FORMS["best"], fingerprint=made_for)
    other = tiny_llama(tmp_path / "other.gguf", seed=1)
    with pytest.raises(UsageError, match=f"made for another model .fingerprint {made_for}"):
        pack(other, weights, tmp_path / "packed.gguf")
    assert not (tmp_path / "packed.gguf").exists()
    sidecar = pack(base, weights, tmp_path / "heads.gguf", "sidecar")
    with open_gguf(other) as file, pytest.raises(UsageError, match=r"heads.gguf: .*another model"):
        open_sidecar(sidecar).check_base(file)


def test_types_that_cannot_hold_the_heads() -> None:
    thin = random_heads(HeadsDefinition.paper(1, 16, 64))
    with pytest.raises(UsageError, match=r"multiple of 32 values; .*proj_up.* has 16; f16"):
        heads_content(thin, "q8_0")
    name = "divine.mtp.0.proj_up.weight"
    big = {**thin.tensors, name: np.full((64, 16), 1e6, np.float32)}
    from divine.heads import HeadWeights

    with pytest.raises(UsageError, match=r"f16, which cannot hold .*proj_up.*; try f32"):
        heads_content(HeadWeights(thin.definition, big), "f16")
    with pytest.raises(UsageError, match="heads_type is 'q4'; allowed are f16, q8_0, f32"):
        heads_content(thin, "q4")  # type: ignore[arg-type]


def test_split_bases_take_sidecars_only(base: Path, tmp_path: Path) -> None:
    shard = split_gguf(base, 2)[0]
    for packaging in ("appended", "inline"):
        with pytest.raises(UsageError, match="split into 2 files"):
            pack(shard, WEIGHTS, tmp_path / "packed.gguf", packaging)
    sidecar = pack(shard, WEIGHTS, tmp_path / "heads.gguf", "sidecar")
    with open_gguf(base) as file:  # merged again, it is the same base
        open_sidecar(sidecar).check_base(file)


def test_the_base_is_never_overwritten(base: Path) -> None:
    before = base.read_bytes()
    with pytest.raises(UsageError, match="is the base itself"):
        pack(base, WEIGHTS, base)
    with open_gguf(base) as file, pytest.raises(UsageError, match="is the base itself"):
        strip(file, base)
    with open_gguf(base) as file, pytest.raises(UsageError, match="nothing to export"):
        package(file, Content(), base.with_name("x.gguf"), "sidecar")
    assert base.read_bytes() == before


@pytest.mark.parametrize("packaging", PACKAGINGS)
def test_a_full_disk_leaves_nothing(
    base: Path, tmp_path: Path, packaging: Packaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("divine.gguf.writer.os.fsync", full)
    with pytest.raises(CapacityError, match=r"packed.gguf cannot be written: No space left"):
        pack(base, WEIGHTS, tmp_path / "packed.gguf", packaging)
    assert [path.name for path in tmp_path.iterdir()] == ["base.gguf"]


def test_one_tensor_given_twice() -> None:
    content = heads_content(WEIGHTS)
    with pytest.raises(UsageError, match=r"again: the tensor 'divine.mtp.* is given twice"):
        content.add(heads_content(WEIGHTS), "again")


def test_nothing_of_an_odd_base_is_lost(tmp_path: Path) -> None:
    """Keys of every type, an empty tensor, bytes behind the last one (which are nobody's)."""
    odd: dict[str, Any] = {
        "x.empty": typed("[u8]", []), "x.text": "", "x.bools": [True, False],
        "x.f64": typed("f64", 0.1), "x.i64": typed("i64", -(2**63)),
        "x.u64": typed("u64", 2**64 - 1), "x.words": ["", "a", "\U0010ffff"],
        "x.i8": typed("i8", -128),
    }  # fmt: skip
    base = tiny_llama(
        tmp_path / "base.gguf", alignment=128, metadata_overrides=odd,
        tensor_overrides={"divine_like": np.zeros((0,), np.float32)},
    )  # fmt: skip
    plain = base.read_bytes()
    base.write_bytes(plain + b"trailing garbage" * 9)
    for packaging in ("appended", "inline"):
        path = pack(base, WEIGHTS, tmp_path / f"{packaging}.gguf", packaging)
        with open_gguf(base) as file, open_gguf(path) as packed:
            before, after = copy_metadata(file), copy_metadata(packed)
            assert {key: after[key] for key in before} == before
            assert list(after)[: len(before)] == list(before)
            assert packed.alignment == 128
            strip(packed, tmp_path / "plain.gguf")
        assert (tmp_path / "plain.gguf").read_bytes() == plain


def test_numbers_that_are_not_finite_are_found_when_loading(base: Path, tmp_path: Path) -> None:
    """A NaN scale of Q8_0 as well as a NaN weight."""
    for heads_type in ("f16", "q8_0", "f32"):
        content = heads_content(WEIGHTS, heads_type)
        name = "divine.mtp.1.proj_up.weight"
        tensor: Any = content.tensors[name]
        raw = np.frombuffer(tensor.data.tobytes(), np.uint8).copy()
        raw[0:4] = (0, 0, 0xC0, 0x7F) if heads_type == "f32" else (0, 0x7E, 1, 1)
        content.tensors[name] = TensorData(tensor.block_type, tensor.shape, raw)
        with open_gguf(base) as file:
            package(file, content, tmp_path / "bad.gguf", "sidecar")
        with pytest.raises(FormatError, match=r"divine.mtp.1.proj_up.weight.* not finite"):
            open_sidecar(tmp_path / "bad.gguf").check_numbers()


def test_only_divine_s_own_names_are_added(base: Path, tmp_path: Path) -> None:
    content = heads_content(WEIGHTS)
    content.tensors["token_embd.weight"] = np.zeros(3, np.float32)
    with open_gguf(base) as file, pytest.raises(UsageError, match=r"'token_embd.weight' cannot be"):
        package(file, content, tmp_path / "x.gguf", "inline")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"projection_dim": typed("u32", 0)}, "rank is 0"),
        ({"num_heads": typed("u32", 4)}, r"divine.mtp.3.proj_down.weight.* is missing"),
        ({"projection_dim": typed("u32", 31)}, r"has shape \[32, 128\]; .*need \[31, 128\]"),
    ],
)
def test_keys_that_contradict_the_tensors(
    base: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    content = heads_content(WEIGHTS)
    content.keys.update({f"divine.speculative.{key}": value for key, value in change.items()})
    with open_gguf(base) as file:
        package(file, content, tmp_path / "x.gguf", "sidecar")
    with pytest.raises(FormatError, match=words):
        open_sidecar(tmp_path / "x.gguf").definition()


# ---- the card ----


def test_the_card_shows_what_was_measured(tmp_path: Path) -> None:
    made = {
        "command": ["divine", "tune", "x | y\nz"],
        "base": "b.gguf",
        "data": {"tokens": 7, "capture": {"sources": ["generated", "sharegpt"], "seed": None}},
        "held_out": {"acceptance": [0.41, 0.3], "tokens_per_pass": 1.5},
    }
    contents = Contents(WEIGHTS.definition, 0, "ab" * 16, made)
    path = write_card(tmp_path / "m.gguf", "appended", "b.gguf", contents)
    text = path.read_text()
    assert path.name == "README.md"
    for part in (
        "`b.gguf` with drafting heads behind",
        "| depth | 1 | 2 |\n|---|---|---|\n| right, if all before were | 0.41 | 0.3 |\n",
        "tokens per pass 1.5.",
        "```\ndivine tune 'x | y z'\n```",
        "* data: tokens 7, capture (sources [generated, sharegpt])\n",
        "ab" * 16,
        "| rank | 32 |",
    ):
        assert part in text
    assert write_card(tmp_path / "m.gguf", "sidecar", "b", contents) == path  # its own again


def test_a_table_alone_is_no_heads(tmp_path: Path) -> None:
    text = write_card(tmp_path / "t.gguf", "sidecar", "b.gguf", Contents(None, 1234, "", {}))
    assert "An n-gram table for `b.gguf`" in text.read_text()
    assert "1,234 entries" in text.read_text()
    assert "drafting heads" not in text.read_text()


def test_somebody_else_s_readme_stays(tmp_path: Path) -> None:
    nothing = Contents(None, 0, "", {})
    (tmp_path / "README.md").write_text("mine")
    path = write_card(tmp_path / "m.gguf", "inline", "b.gguf", nothing)
    assert path.name == "m.gguf.README.md"
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "README.md").unlink()
    assert write_card(tmp_path / "m.gguf", "inline", "b.gguf", nothing).name == "README.md"
    assert write_card(tmp_path / "n.gguf", "inline", "b.gguf", nothing).name == "n.gguf.README.md"
    with pytest.raises(UsageError, match="cannot be written"):
        write_card(tmp_path / "no" / "m.gguf", "inline", "b.gguf", nothing)
