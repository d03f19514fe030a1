"""Device and platform of a computation."""

import contextlib
from collections.abc import Iterator

import jax


def current() -> str:
    """Platform of the current computation: `cpu`, `gpu` (NVIDIA), `rocm` (AMD), `tpu`, or another.

    It is that of the mesh if one is set, else of `jax.default_device`, else of the default backend.
    """
    mesh_device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    if mesh_device is not None:
        return of(mesh_device)
    chosen = _default_device()
    if chosen is None or isinstance(chosen, str):
        return _name(chosen or jax.default_backend())
    return of(chosen)


def of(device: jax.Device) -> str:
    """Platform of a device, by the names of `current`."""
    return _name(device.platform)


@contextlib.contextmanager
def settings_of_package() -> Iterator[None]:
    """JAX's settings for the programs of this package, whatever the process has set.

    Numbers have 32 bits, types and axes are promoted as usual, and arrays are transferred where
    they are needed. Code of a caller, such as a training loop that calls the model, keeps the
    caller's settings, so the model, its losses and `TrainStep` work under all of them.
    """
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.transfer_guard("allow"),
    ):
        yield


def matmul_precision() -> str | None:
    """What `jax.default_matmul_precision` says in this thread."""
    return getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009


def local_devices() -> list[jax.Device]:
    """Devices of this process: only `jax.default_device` if it is set."""
    chosen = _default_device()
    if chosen is None:
        return jax.local_devices()
    return jax.local_devices(backend=chosen)[:1] if isinstance(chosen, str) else [chosen]


def all_devices() -> list[jax.Device]:
    """Devices of all processes, of the platform of `jax.default_device` if it is set."""
    chosen = _default_device()
    if chosen is None:
        return jax.devices()
    return jax.devices(chosen if isinstance(chosen, str) else chosen.platform)


def _default_device() -> jax.Device | str | None:
    """`jax.default_device`: a device, the name of a platform, or None."""
    return getattr(jax.config, "jax_default_device")  # noqa: B009


def _name(platform: str) -> str:
    """One name for each platform: JAX uses `gpu`, `cuda` and `rocm` inconsistently."""
    name = platform.lower()
    return ("rocm" if _is_rocm() else "gpu") if name in ("gpu", "cuda") else name


def _is_rocm() -> bool:
    """Whether this machine's GPUs are AMD's. Programs may be compiled on a machine without one."""
    try:
        version = jax.devices("gpu")[0].client.platform_version
    except RuntimeError:
        return False
    return "rocm" in version.lower()
