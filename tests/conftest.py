"""All tests: float64, strict promotion, one XLA thread for each of the test processes, a persistent compile cache."""

import os
import signal

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
# Most programs of the tests run once, and are compiled in a third less time; also in the processes that tests start.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest
from hypothesis import HealthCheck, settings

from bplambda.cache import use_compilation_cache

# Whoever runs the tests in the background may have them ignore Ctrl-C, or the end of a terminal (nohup), and so would
# the commands that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

use_compilation_cache()
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# A new size means a new compilation: time says nothing about the code, and examples are few but wide.
settings.register_profile(
    "bplambda", deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("bplambda")


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Compiled programs are mapped into memory one by one, and a process may have only so many mappings."""
    yield
    jax.clear_caches()


@pytest.fixture
def compilations():
    """How many programs are compiled while `work()` is done."""
    seen = []

    def counted(work):
        before = len(seen)
        work()
        return len(seen) - before

    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *args, **kwargs: seen.append(event) if "backend_compile" in event else None
    )
    try:
        assert counted(lambda: jax.jit(lambda x: x * 3 + 17)(1.0)), "or nothing would ever be seen"
        yield counted
    finally:
        jax.monitoring.clear_event_listeners()


@pytest.fixture
def getkey():
    """Fresh PRNG keys, the same in every run."""
    keys = iter(jax.random.split(jax.random.key(5678), 64))
    return lambda: next(keys)


@pytest.fixture
def plain_jax():
    """JAX as users have it: float32, and no strictness."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    with jax.enable_x64(False):
        yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def optimised():
    """Programs as users have them, in all their optimisations: where bits are compared."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
