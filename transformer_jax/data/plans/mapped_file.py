"""An array in a file that is mapped into memory, of which a few places at a time are read."""

import mmap
from pathlib import Path

import numpy as np


class MappedFile:
    """An array of a `.npy` file.

    Places are read at random, so the system reads only the pages that are used.

    Args:
      path: of the file.

    Attributes:
      array: all of it; what is used of it is read then.
    """

    def __init__(self, path: Path):
        mapped = np.load(path, mmap_mode="r")
        self.array: np.ndarray = mapped.view(np.ndarray)  # a view of a memmap is slower
        self._map: mmap.mmap = mapped._mmap
        # The map begins at a boundary before the array.
        self._address = self.array.ctypes.data - mapped.offset % mmap.ALLOCATIONGRANULARITY
        self._map.madvise(mmap.MADV_RANDOM)

    def read_ahead(self, part: np.ndarray, places: np.ndarray) -> None:
        """Starts to read the pages of `places` of `part`, a view of `array`, all at once.

        Without this they are read one after another, when each is used.
        """
        offsets = part.ctypes.data - self._address + places * part.strides[0]
        for page in np.unique(offsets // mmap.PAGESIZE).tolist():
            self._map.madvise(mmap.MADV_WILLNEED, page * mmap.PAGESIZE, mmap.PAGESIZE)
