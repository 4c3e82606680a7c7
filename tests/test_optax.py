"""The gradient transformations of optax, in another process: JAX starts threads, and other tests fork."""

import subprocess
import sys
from pathlib import Path

import pytest

FACTS = Path(__file__).with_name("optax_facts.py")


@pytest.mark.timeout(300)  # each fact has its own limit
def test_the_facts_of_the_gradient_transformations_hold():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(FACTS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FACTS.parents[1])
    assert result.returncode == 0, result.stdout + result.stderr
