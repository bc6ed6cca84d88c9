"""``python -m tests.real_model``: get the real model where it is missing, and run its tests."""

import os
import sys
from pathlib import Path
from time import perf_counter

import pytest

from tests.real_model.install import CACHE, install, installed

if not installed():
    began_at = perf_counter()
    install()
    print(f"The real model was put into {CACHE} in {perf_counter() - began_at:.0f} s.")
os.environ["LOOPGUARD_AT_LENGTH"] = "1"
sys.exit(pytest.main(["-v", "--no-header", str(Path(__file__).parent)]))
