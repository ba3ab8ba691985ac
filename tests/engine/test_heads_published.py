"""Files of divine-mtp 0.1.0, made by that very package: read, drafted with, exported anew."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

import divine
from divine.gguf import open_gguf
from divine.heads import HeadsDefinition, HeadWeights
from divine.heads.reference import level
from divine.heads.section import find_additions
from tiny_models import tiny_llama

WHEEL = "divine_mtp-0.1.0-py3-none-any.whl"
PROMPT = [1, 10, 11, 12, 13, 14, 15]
# Importing the package itself would import transformers, which takes long and is not needed.
MAKE = """
import sys, types
package = types.ModuleType("divine_mtp")
package.__path__ = [sys.argv[1] + "/divine_mtp"]
sys.modules["divine_mtp"] = package
import torch
from divine_mtp.exporter import export_mtp_to_safetensors, inject_mtp_into_gguf
from divine_mtp.model import DivineMtpModule
torch.manual_seed(0)
module = DivineMtpModule(64, num_heads=2, rank=16)
for head in module.heads:
    torch.nn.init.normal_(head.proj_up.weight, std=0.3)
    torch.nn.init.normal_(head.proj_down.weight, std=0.2)
inject_mtp_into_gguf(sys.argv[2], module, sys.argv[3] + "/inline.gguf")
export_mtp_to_safetensors(module, sys.argv[3] + "/heads.safetensors")
state, token = torch.randn(5, 64), torch.randn(5, 64)
states = [state]
with torch.no_grad():
    for head in module.heads:
        head.half().float()
        states.append(torch.stack(head(states[-1] if len(states) == 1 else states[-1][0], token)))
import numpy as np
np.savez(sys.argv[3] + "/truth.npz", state=state, token=token,
         after=torch.stack(states[1:]).numpy())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with base.gguf and what the package makes of it."""
    pytest.importorskip("torch", reason="the package needs torch")
    pytest.importorskip("gguf")
    folder = tmp_path_factory.mktemp("published")
    wheels = llama_cpp.folder().parent
    if not (wheels / WHEEL).exists():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
        command = [*pip, "-d", str(wheels), "divine-mtp==0.1.0"]
        fetched = subprocess.run(command, capture_output=True, text=True)
        if fetched.returncode:
            pytest.skip(f"divine-mtp 0.1.0 cannot be fetched: {fetched.stderr[-200:]}")
    with zipfile.ZipFile(wheels / WHEEL) as wheel:
        wheel.extractall(folder)
    base = tiny_llama(folder / "base.gguf", seed=3)
    command = [sys.executable, "-c", MAKE, str(folder), str(base), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.oracle
def test_its_inline_files_are_read(made: Path) -> None:
    with open_gguf(made / "inline.gguf") as file:
        found = find_additions(file)
        assert found is not None
        assert (found.packaging, found.fingerprint) == ("inline", None)
        assert found.definition() == HeadsDefinition.published(2, 16, 64)
        assert found.file.block_type("divine.mtp.1.proj_down.weight") == "F16"


@pytest.mark.oracle
def test_its_heads_compute_what_its_torch_code_says(made: Path) -> None:
    """Up to GELU, which it takes exactly and we by the tanh: 1e-3 of the numbers' size."""
    weights = HeadWeights.load(made / "heads.safetensors")
    truth = np.load(made / "truth.npz")
    state = truth["state"]
    for depth in (1, 2):
        carried, output = level(weights.definition, weights.tensors, depth, state, truth["token"])
        wanted = truth["after"][depth - 1]
        for ours, theirs in ((carried, wanted[0]), (output, wanted[1])):
            assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max()
        state = carried


@pytest.mark.oracle
def test_the_text_is_the_plain_one(made: Path) -> None:
    with divine.load(made / "inline.gguf", threads=1) as model:
        drafted = model.generate(PROMPT, max_tokens=24, temperature=0, draft="mtp", draft_tree=4)
        assert sum(drafted.statistics.drafts["mtp"].drafted) > 0
    with divine.load(made / "base.gguf", threads=1) as model:
        plain = model.generate(PROMPT, max_tokens=24, temperature=0, draft="none")
    assert drafted.tokens == plain.tokens


@pytest.mark.oracle
def test_they_are_packed_so_that_others_load_them(made: Path) -> None:
    from divine.heads.packaging import additions_content, package
    from divine.heads.section import open_sidecar

    with open_gguf(made / "inline.gguf") as file:
        content = additions_content(open_sidecar(file.path))
        package(file, content, made / "appended.gguf", "appended")
    with open_gguf(made / "appended.gguf") as file:
        assert not [name for name in file.tensors if name.startswith("divine.")]
        found = find_additions(file)
        assert found is not None
        assert found.definition() == HeadsDefinition.published(2, 16, 64)
