"""Fixture that runs a page of the guide and returns its variables."""

import functools
import runpy
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide"
sys.path.insert(0, str(GUIDE))  # pages import modules next to them


@pytest.fixture(scope="session")
def page():
    """A function that runs a page once, given the start of its file name."""

    @functools.cache
    def run(name: str):
        (path,) = GUIDE.glob(f"{name}*.py")
        return runpy.run_path(str(path))

    return run
