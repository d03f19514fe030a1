"""The recipes of `configs/` as modules, where the package is not installed but used from source.

An installed package has them here.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "configs")]
