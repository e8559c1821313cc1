"""Data of MNIST's shape that is small enough for tests."""

import struct
from pathlib import Path

import numpy as np


def write_small_mnist(folder: Path, train: int = 200, test: int = 50, seed: int = 0) -> dict[str, np.ndarray]:
    """Writes the four files, unpacked, under their usual names: noise, with a bright bar where the label says.

    **Returns:** the arrays in them, by file name.
    """
    rng = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("train", train), ("t10k", test)):
        labels = rng.integers(10, size=count, dtype=np.uint8)
        images = rng.integers(100, size=(count, 28, 28), dtype=np.uint8)
        rows = 4 + 2 * labels[:, None] + np.arange(2)  # two of the 28, for each image
        images[np.arange(count)[:, None], rows, 4:24] += 150
        arrays[f"{part}-images-idx3-ubyte"] = images
        arrays[f"{part}-labels-idx1-ubyte"] = labels
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        (folder / name).write_bytes(idx(array))
    return arrays


def idx(array: np.ndarray) -> bytes:
    """An array of bytes as an IDX file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
