"""A persistent cache of compiled programs, so that second runs start fast."""

import os
from pathlib import Path

import jax
import platformdirs


def use_compilation_cache() -> Path | None:
    """Keeps compiled programs in the user's cache directory; for the command line and the tests, never at import.

    `BPLAMBDA_CACHE` names another folder, or is empty for no cache at all. `JAX_COMPILATION_CACHE_DIR` is respected.

    **Returns:** the folder, or `None` without a cache.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    default = platformdirs.user_cache_path("bplambda") / "xla"
    folder = os.environ.get("BPLAMBDA_CACHE", str(default))
    if not folder:
        return None
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return Path(folder)
