"""The command `serve`: an HTTP server for one model or several."""

import ast
import concurrent.futures
import functools
import ipaddress
import os
import re
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

from transformer_jax.commands import command_line
from transformer_jax.commands.command_help import CommandHelp
from transformer_jax.errors import UserError, missing_package

FLAGS = flags.FLAGS
HELP = CommandHelp(
    usage="[--model=NAME=DIR] [flags]",
    about="Serves models over HTTP: an API of its own, those of LibreTranslate and DeepL for their "
    "clients, and a page. Texts of all clients share batches. All programs are compiled before "
    "/readyz answers 200, and none afterwards. SIGTERM or Ctrl-C answers what is accepted and "
    "ends; a second one ends at once. SIGHUP loads models and keys again, and loses no request. "
    "/docs describes the API.",
    less_memory="lower --batch_tokens or --max_tokens",
    keeps_memory=False,
    examples=(
        (
            "A run, on this machine only:",
            "transformer-jax serve --model=runs/mine --port=8080 --open",
        ),
        (
            "Two models with names, for clients that have a key:",
            "transformer-jax serve --model=en-de=runs/de --model=en-fr=runs/fr "
            "--host=0.0.0.0 --api_keys=keys.txt",
        ),
        (
            "A key for a client; its digest goes to the file, the key is printed once:",
            "transformer-jax serve --api_keys=keys.txt --new_key=CLIENT",
        ),
        (
            "Greedy search too, for requests with beam_size=1:",
            "transformer-jax serve --model=runs/mine --search=beam_size=1",
        ),
    ),
    pages=(("docs/serving.md", "routes, limits, engines, and how many processes to run"),),
)


def define_flags(argv: list[str]) -> list[str]:
    """Flags of the command; returns `argv`."""
    flags.DEFINE_multi_string(
        "model",
        [],
        "NAME=DIR, or DIR alone: folder of a run, of a Hugging Face model or of a CTranslate2 "
        "export, a bundle, or a name on the Hub. Several times for several models; the first "
        "answers requests that name none, if it has their languages.",
    )
    command_line.define_text("checkpoint", "best", "best|latest|STEP|average:N", "Of the runs.")
    command_line.define_text("host", "127.0.0.1", "ADDRESS", "Address of this machine to serve at.")
    flags.DEFINE_integer("port", 8080, "Port; 0 is any that is free.", 0, 65_535)
    flags.DEFINE_bool("public", False, "Serve other machines without --api_keys.")
    flags.DEFINE_bool("open", False, "Open the page in a browser as soon as it can translate.")
    command_line.define_path(
        "api_keys",
        None,
        "FILE",
        "File of keys; other clients are refused. A line is NAME SHA256 [CHARS_PER_MINUTE].",
    )
    command_line.define_text(
        "new_key", None, "CLIENT", "Add a key to --api_keys, print it, and end."
    )
    command_line.define_text(
        "cors_origin",
        None,
        "ORIGIN,ORIGIN",
        "Web pages of other servers that may send requests, such as https://example.org; * is any.",
    )
    flags.DEFINE_multi_string(
        "search",
        [],
        "A further search that clients may ask for, such as beam_size=1 or "
        "method='sample',beam_size=1,n_best=4; it is compiled at the start. Several times for "
        "several.",
    )
    flags.DEFINE_bool(
        "retries",
        True,
        "Compile the searches for texts whose translation a guard catches; without them such texts "
        "are only flagged.",
    )
    flags.DEFINE_integer("max_queue", 1024, "Texts that may wait; more get status 429.", 1)
    flags.DEFINE_integer("max_texts", 256, "Texts of a request.", 1)
    flags.DEFINE_integer("max_chars", 50_000, "Characters of a request.", 1)
    flags.DEFINE_integer(
        "max_tokens", 128, "Tokens of a sentence; longer ones are translated in parts.", 8
    )
    flags.DEFINE_integer(
        "batch_tokens", None, "Source positions times beams of a batch; unset: the model's own.", 1
    )
    flags.DEFINE_float("batch_wait_ms", 3.0, "How long a text waits for others of its batch.", 0)
    flags.DEFINE_float(
        "timeout_ms", 30_000.0, "Longest time that a text waits; then status 504.", 1
    )
    flags.DEFINE_integer("drain_seconds", 30, "Most time for the last answers on SIGTERM.", 1)
    return argv


def run() -> None:
    """Serves until a signal ends it."""
    try:
        from transformer_jax.extras.serving import app, keys, lifecycle, priority, server
        from transformer_jax.extras.serving.service import Service
    except ModuleNotFoundError as error:
        raise missing_package(error, "serve") from error
    if FLAGS.new_key is not None:
        if not FLAGS.api_keys:
            raise UserError("--api_keys=FILE is missing: the file that gets the key's digest.")
        print(keys.add_key(Path(FLAGS.api_keys), FLAGS.new_key))
        return
    loaders = _loaders()
    _check_host()
    origins = _origins()
    read_keys = functools.partial(keys.Keys.read, Path(FLAGS.api_keys)) if FLAGS.api_keys else None
    known = read_keys() if read_keys else None
    bound = server.bind(FLAGS.host, FLAGS.port)
    server.allow_connections()
    address = server.address_of(bound)
    # In a thread, because those that an engine starts have the priority of their first one.
    with concurrent.futures.ThreadPoolExecutor(1, initializer=priority.lower) as pool:
        service = Service(list(pool.map(lambda load: load(), loaders.values())))
    # A character has up to 12 bytes, as two escapes of JSON.
    web = app.create_app(service, known, 12 * FLAGS.max_chars + 100_000, origins)
    life = lifecycle.Lifecycle(web, loaders, read_keys, _say)
    running = server.Server(web, FLAGS.drain_seconds, life.reload)

    def open_page() -> None:
        if FLAGS.open and not webbrowser.open(address):
            _say(f"no browser was found; open {address}")

    def stop() -> None:
        running.should_exit = True

    _say(f"serving {', '.join(service.models)} at {address}, compiling")
    life.start(open_page, stop)
    running.run(sockets=[bound])
    if running.stopped_by:
        _say(f"stopped by {running.stopped_by}")
    if life.failure is not None:
        raise life.failure
    if life.is_working:  # what compiles cannot be interrupted
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _say(message: str) -> None:
    print(message, flush=True)


def _loaders() -> dict[str, Callable[[], Any]]:
    """What loads each model of --model, by its name."""
    if not FLAGS.model:
        raise UserError("--model=NAME=DIR is missing: the model to serve.")
    loaders: dict[str, Callable[[], Any]] = {}
    for text in FLAGS.model:
        name, separator, path = text.partition("=")
        if not separator:
            name, path = Path(text.rstrip("/")).name or text, text
        if not path or not re.fullmatch(r"\w[\w.@+-]{0,127}", name):
            raise UserError(
                f"--model={text}: write NAME=DIR with a name of letters, digits and . _ @ + -"
            )
        if name in loaders:
            raise UserError(f"--model={text}: another model has the name {name}; write NAME=DIR.")
        loaders[name] = functools.partial(_load, name, path)
    return loaders


def _load(name: str, path: str) -> Any:
    """A model with the searches that clients may ask for."""
    from transformer_jax.extras.serving.jobs import Limits
    from transformer_jax.extras.serving.served_model import ServedModel
    from transformer_jax.translator.translator import Translator

    limits = Limits(
        FLAGS.max_queue,
        FLAGS.max_texts,
        FLAGS.max_chars,
        FLAGS.max_tokens,
        FLAGS.batch_wait_ms,
        FLAGS.timeout_ms,
    )
    translator = Translator.load(path, FLAGS.checkpoint)
    if FLAGS.batch_tokens:
        translator.config.decode.batch_tokens = FLAGS.batch_tokens
    searches = [_search(text) for text in FLAGS.search]
    return ServedModel(name, translator, searches, limits, FLAGS.retries)


def _origins() -> list[str]:
    """The origins of --cors_origin."""
    origins = [one.strip() for one in (FLAGS.cors_origin or "").split(",") if one.strip()]
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s?#]+", origin):
            raise UserError(
                f"--cors_origin={origin} is no origin: write https://HOST or https://HOST:PORT, "
                "without a path."
            )
    return origins


def _search(text: str) -> dict[str, Any]:
    """The settings of `beam_size=1,length_penalty=0.6`."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        if any(word.arg is None for word in call.keywords):
            raise ValueError
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UserError(f"--search={text}: settings are NAME=VALUE, with commas.") from error


def _check_host() -> None:
    """Refuses an address that other machines reach, unless they need keys or --public is set."""
    try:
        is_local = ipaddress.ip_address(FLAGS.host).is_loopback
    except ValueError:
        is_local = FLAGS.host == "localhost"
    if not (is_local or FLAGS.api_keys or FLAGS.public):
        raise UserError(
            f"--host={FLAGS.host} can be reached from other machines: add --api_keys=FILE, or "
            "--public to serve without keys."
        )
