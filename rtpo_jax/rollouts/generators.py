"""Random numbers on the host, from the keys that decide those on the device."""

import jax
import numpy as np


def generator(key: jax.Array) -> np.random.Generator:
    """A numpy generator that is fixed by `key`; the key is consumed."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))
