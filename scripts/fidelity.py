"""How far are Divine's numbers from the exact ones, and how far are llama.cpp's?

    python scripts/fidelity.py MODEL.gguf [--text FILE] [--chunks N] [--json FILE]

The yardstick is llama.cpp in float32 on the DEQUANTIZED weights of the same file (keys and values
in float32 too), so that what is measured is the arithmetic and not the quantization of the weights.
On real text, in chunks of 512 tokens of which the second half counts, both engines run the file as
it is and are compared: mean KL divergence, and how often the likeliest token is the same. The text
is the project's own prose and code, frozen in tests/data, which no model has been trained on.

llama-perplexity computes its own figures; those of Divine follow the same definitions (base
probabilities from its 16-bit file of log-probabilities, terms below exp(-16) left out).
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llama_cpp import perplexity_tool
from numpy.typing import NDArray

from divine.backends import create_backend
from divine.backends.base import Executable, Rows, Want
from divine.blocks import dequantize
from divine.gguf import GGUFFile, TensorData, copy_metadata, open_gguf, write_gguf
from divine.models import build_program

CONTEXT = 512  # tokens in a chunk; as llama-perplexity: the second half counts
TAIL = -16.0  # log-probabilities of the yardstick below this are left out, as there
TEXT = Path(__file__).parent.parent / "tests" / "data" / "fidelity.txt"


@dataclass(frozen=True)
class Figures:
    """What is compared."""

    mean_kl: float
    same_top: float  # share of positions, 0..1
    positions: int


def main() -> None:
    options = _options()
    tool = perplexity_tool()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        exact, base = Path(scratch) / "exact.gguf", Path(scratch) / "base.kld"
        print("writing the dequantized weights ...", file=sys.stderr)
        with open_gguf(options.model) as file:
            write_dequantized(file, exact)
        arguments = ["-f", str(options.text), "--chunks", str(options.chunks)]
        arguments += ["-c", str(CONTEXT), "-b", str(CONTEXT), "-t", str(options.threads)]
        print("llama.cpp, float32 ...", file=sys.stderr)
        _run(tool, exact, base, *arguments, "-ctk", "f32", "-ctv", "f32", "-fa", "off")
        exact.unlink()
        print("llama.cpp, the file itself ...", file=sys.stderr)
        peer = peer_figures(_run(tool, options.model, base, *arguments, "--kl-divergence"))
        print(f"Divine, backend {options.backend} ...", file=sys.stderr)
        with open_gguf(options.model) as file:
            executable = create_backend(options.backend).compile(
                build_program(file), file, threads=options.threads
            )
            ours = compare(base, executable, _bos(file))
    report(options, ours, peer)


def write_dequantized(file: GGUFFile, path: Path) -> None:
    """The same model with every tensor in float32, one tensor in memory at a time."""

    def values(name: str) -> Callable[[], NDArray[np.float32]]:
        return lambda: dequantize(file.raw(name), file.block_type(name), file.shape(name))

    tensors = {name: TensorData("F32", file.shape(name), values(name)) for name in file.tensors}
    metadata = copy_metadata(file)
    metadata.pop("general.file_type", None)
    write_gguf(path, metadata, tensors)


def peer_figures(output: str) -> Figures:
    """The figures that llama-perplexity prints at its end."""
    kl = re.search(r"Mean +KLD: +(-?[\d.]+)", output)
    top = re.search(r"Same top p: +([\d.]+)", output)
    chunks = len(re.findall(r"^ *\d+ +[\d.]+ ±", output, re.MULTILINE))
    if not kl or not top:
        sys.exit("llama-perplexity printed no KL divergence:\n" + output[-2000:])
    return Figures(float(kl[1]), float(top[1]) / 100, chunks * _scored(CONTEXT))


def compare(base: Path, executable: Executable, bos: int | None) -> Figures:
    """The figures of an executable against a file of base log-probabilities."""
    divergences: list[float] = []
    same = 0
    for tokens, reference in read_base(base):
        if bos is not None:
            tokens = np.concatenate([[bos], tokens[1:]])
        logits = all_logits(executable, tokens)
        for row, expected in zip(logits, reference, strict=True):
            row64 = row.astype(np.float64)
            best = row64.max()
            log_p = row64 - best - np.log(np.exp(row64 - best).sum())
            counted = expected > TAIL
            terms = np.exp(expected[counted]) * (expected[counted] - log_p[counted])
            divergences.append(float(terms.sum()))
            same += int(np.argmax(row64) == np.argmax(expected))
    count = len(divergences)
    return Figures(float(np.mean(divergences)), same / count, count)


def read_base(path: Path) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """(tokens [context], log-probabilities [scored, vocabulary]) of each chunk.

    The format is llama-perplexity's: "_logits_", context, vocabulary, chunks as int32, all tokens,
    then for each scored position float32 scale and minimum and a uint16 for each token.
    """
    with path.open("rb") as file:
        if file.read(8) != b"_logits_":
            sys.exit(f"{path} is no file of llama-perplexity")
        context, vocabulary, chunks = struct.unpack("<3i", file.read(12))
        tokens = np.fromfile(file, "<i4", chunks * context).reshape(chunks, context)
        width = 2 * ((vocabulary + 1) // 2) + 4
        for chunk in tokens:
            packed = np.fromfile(file, "<u2", _scored(context) * width)
            packed = packed.reshape(_scored(context), width)
            head = np.ascontiguousarray(packed[:, :4]).view("<f4").astype(np.float64)
            codes = packed[:, 4 : 4 + vocabulary].astype(np.float64)
            yield chunk, codes * head[:, :1] + head[:, 1:2]


def all_logits(executable: Executable, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits [scored, vocabulary] of the positions that count, through the engine's own passes."""
    state = executable.new_state(len(tokens))
    first, last = len(tokens) // 2, len(tokens) - 1
    step = min(128, executable.max_rows)
    parts = []
    for start in range(0, last, step):
        rows = Rows.chain(tokens[start : min(start + step, last)])
        wanted = [i for i in range(len(rows)) if start + i >= first]
        parts.append(executable.run([state], rows, Want(logits=wanted)).logits)
        state.commit(range(len(rows)))
    state.close()
    return np.concatenate(parts)


def _scored(context: int) -> int:
    return context - 1 - context // 2


def _bos(file: GGUFFile) -> int | None:
    if not file.metadata.bool("tokenizer.ggml.add_bos_token", False):
        return None
    return int(file.metadata.int("tokenizer.ggml.bos_token_id"))


def _run(tool: Path, model: Path, base: Path, *arguments: str) -> str:
    command = [str(tool), "-m", str(model), "--kl-divergence-base", str(base), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{(result.stdout + result.stderr)[-3000:]}")
    return result.stdout + result.stderr


def report(options: argparse.Namespace, ours: Figures, peer: Figures) -> None:
    """The table on standard output, and the file."""
    print(f"{options.model.name}, {ours.positions} positions of {options.text.name}")
    print(f"{'':12}{'mean KL':>12}{'same top':>12}")
    for name, figures in (("Divine", ours), ("llama.cpp", peer)):
        print(f"{name:12}{figures.mean_kl:12.6f}{100 * figures.same_top:11.2f}%")
    ratio = ours.mean_kl / peer.mean_kl if peer.mean_kl else float("nan")
    print(f"{'ratio':12}{ratio:12.3f}{100 * (ours.same_top - peer.same_top):+11.2f} points")
    if options.json:
        document = {
            "model": options.model.name,
            "text": options.text.name,
            "backend": options.backend,
            "divine": vars(ours),
            "llama_cpp": vars(peer),
            "kl_ratio": ratio,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--chunks", type=int, default=4, help="of 512 tokens, 255 scored")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "reference"))
    parser.add_argument("--scratch", type=Path, help="folder with room for the float32 weights")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
