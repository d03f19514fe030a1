"""Pages of the guide are programs: they are run, and tests look at what they have found."""

import functools
import runpy
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide"


@pytest.fixture(scope="session")
def page():
    """Runs a page by the beginning of its name, once; gives its variables."""

    @functools.cache
    def run(name: str):
        (path,) = GUIDE.glob(f"{name}*.py")
        return runpy.run_path(str(path))

    return run
