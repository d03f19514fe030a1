"""A small model that is served, for tests of the server: by itself, and over a real socket."""

import asyncio
import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator

from transformer_jax import Translator
from transformer_jax.extras.serving import server
from transformer_jax.extras.serving.jobs import Limits
from transformer_jax.extras.serving.served_model import ServedModel

LIMITS = Limits(max_tokens=16, max_texts=8, max_chars=200)


@functools.cache
def prepared(translator: Translator) -> ServedModel:
    """A model whose programs are compiled, with greedy search too; the same for all tests."""
    config = translator.config
    decode = dataclasses.replace(config.decode, batch_tokens=256)
    config = dataclasses.replace(config, decode=decode)
    fresh = Translator(config, translator.tokenizers, translator.params)
    served = ServedModel("tiny", fresh, [{"beam_size": 1}], LIMITS)
    served.prepare()
    return served


def served_model(translator: Translator, **limits) -> ServedModel:
    """`prepared` with other limits; it has yet to be prepared itself, without compilations."""
    compiled = prepared(translator)
    limits = dataclasses.replace(LIMITS, **limits)
    return ServedModel("tiny", compiled.translator, compiled.searches[1:], limits)


@contextlib.contextmanager
def running(app, **arguments) -> Iterator[str]:
    """Serves `app` in a thread; gives its address, without the last slash."""
    bound = server.bind("127.0.0.1", 0)
    address = server.address_of(bound).rstrip("/")
    one = server.Server(app, drain_seconds=5, **arguments)
    thread = threading.Thread(target=one.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield address
    finally:
        one.should_exit = True
        thread.join()


def wait_until(condition) -> None:
    """Returns as soon as `condition()` holds; fails after minutes."""

    async def poll():
        async with asyncio.timeout(240):
            while not condition():
                await asyncio.sleep(0.01)

    asyncio.run(poll())
