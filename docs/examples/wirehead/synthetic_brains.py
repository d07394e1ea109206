"""Synthetic brain scans in the manner of SynthSeg: from label maps to pictures of any contrast, without any data.

Billot et al., "SynthSeg: Segmentation of brain MRI scans of any contrast and resolution without retraining" (2023): a
label map is deformed, each label gets a random intensity, and a bias field, blur and noise make a scan of it. Here the
label maps are drawn, too, from nested ellipsoids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import ndimage

SIZE = 48  # of a volume, in voxels along each axis
LABELS = 5  # background, skull, grey matter, white matter, ventricles
SLICES = 8  # that are taken of a volume

Array = np.ndarray[Any, Any]


def slices(seed: int) -> Iterator[tuple[Array, Array]]:
    """Slices of random scans: float32 (1, SIZE, SIZE) in [0, 1], and int64 (1, SIZE, SIZE) in [0, LABELS)."""
    rng = np.random.default_rng(seed)
    while True:
        image, labels = volume(rng)
        for z in rng.choice(np.arange(SIZE // 4, 3 * SIZE // 4), SLICES, replace=False):
            yield image[None, z], labels[None, z].astype(np.int64)


def volume(rng: np.random.Generator) -> tuple[Array, Array]:
    """A scan (float32) and its labels (uint8), both SIZE x SIZE x SIZE."""
    labels = deformed(label_map(rng), rng)
    means, deviations = rng.uniform(0, 1, LABELS), rng.uniform(0.01, 0.06, LABELS)
    means[0] = rng.uniform(0, 0.2)
    image = means[labels] + deviations[labels] * rng.standard_normal(labels.shape)
    image *= np.exp(0.3 * smooth_noise(rng, SIZE // 3))  # the scanner's bias field
    image = ndimage.gaussian_filter(image, rng.uniform(0.3, 0.9))  # its resolution
    image += rng.normal(0, rng.uniform(0.01, 0.04), image.shape)
    low, high = np.percentile(image, (0.5, 99.5))
    return np.clip((image - low) / (high - low), 0, 1).astype(np.float32), labels


def label_map(rng: np.random.Generator) -> Array:
    """Nested ellipsoids, each a bit off, the cortex folded by a wave: uint8."""
    grid = np.stack(np.mgrid[:SIZE, :SIZE, :SIZE]).astype(np.float64) / SIZE - 0.5
    grid -= rng.uniform(-0.03, 0.03, (3, 1, 1, 1))
    waves = 0.02 * np.sin(grid[0] * rng.uniform(30, 50)) * np.sin(grid[1] * rng.uniform(30, 50) + grid[2] * 35)
    labels = np.zeros((SIZE, SIZE, SIZE), np.uint8)
    for label, radius, folds in ((1, 0.42, 0.0), (2, 0.36, 0.5), (3, 0.29, 1.5)):
        axes = radius * rng.uniform(0.9, 1.1, (3, 1, 1, 1))
        labels[np.sqrt(((grid / axes) ** 2).sum(0)) + folds * waves / radius < 1] = label
    for side in (-1, 1):
        centre = np.array([0, side * rng.uniform(0.05, 0.08), 0]).reshape(3, 1, 1, 1)
        axes = np.array([0.12, 0.035, 0.07]).reshape(3, 1, 1, 1) * rng.uniform(0.7, 1.5, (3, 1, 1, 1))
        labels[(((grid - centre) / axes) ** 2).sum(0) < 1] = 4
    return labels


def deformed(labels: Array, rng: np.random.Generator) -> Array:
    """A random elastic deformation, of a few voxels."""
    shift = np.stack([smooth_noise(rng, SIZE // 6) for _ in range(3)]) * 2
    places = np.stack(np.mgrid[:SIZE, :SIZE, :SIZE]) + shift
    return ndimage.map_coordinates(labels, places, order=0, mode="nearest")


def smooth_noise(rng: np.random.Generator, scale: float) -> Array:
    """Gaussian noise that varies over ``scale`` voxels, of standard deviation 1."""
    noise = ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE, SIZE)), scale / 2, mode="wrap")
    return noise / noise.std()
