"""JAX's cache of compiled programs on the disk, which later processes read."""

FOLDER = "xla"  # in the user's cache folder for this package
# Programs that compile faster are not kept. JAX's default would compile those of small models, and
# the preparation of weights, in every process.
MIN_COMPILE_SECONDS = 0.1
JAX_MIN_COMPILE_SECONDS = 1.0


def keep_programs() -> bool:
    """Keeps compiled programs on the disk, unless JAX's own settings say where, or not to.

    The commands, `training.loop.train` and `Translator.load` call it. It holds for every program
    that the process compiles from then on. Settings of JAX that were changed stay: the folder
    `jax_compilation_cache_dir` (empty: nothing is kept), `jax_enable_compilation_cache=False`, or
    the environment variables of these names.

    Returns:
      Whether the folder is ours.
    """
    import jax

    from transformer_jax.paths import cache_folder

    def setting(name: str) -> object:
        return getattr(jax.config, name)

    folder = str(cache_folder() / FOLDER)
    if setting("jax_enable_compilation_cache") and setting("jax_compilation_cache_dir") is None:
        jax.config.update("jax_compilation_cache_dir", folder)
    keeps = setting("jax_enable_compilation_cache") and setting("jax_compilation_cache_dir")
    if keeps and setting("jax_persistent_cache_min_compile_time_secs") == JAX_MIN_COMPILE_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    return setting("jax_compilation_cache_dir") == folder
