"""The engines that `benchmarks/decode.py` compares, on one exported model."""

import dataclasses
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from processes import Worker

Setting = int | tuple[int, int]  # of an engine's threads; each engine says what it means


@dataclasses.dataclass(frozen=True)
class Task:
    """Sentences to translate, and settings of the search."""

    sentences: tuple[tuple[str, ...], ...]  # tokens, without end symbols
    beam_size: int
    num_tokens: int | None = None  # exact number of output tokens; None: as the model decides
    max_decode_len: int = 100
    shortlist: bool = False  # search among the tokens of the model's shortlist
    rows: int = 0  # sentences of a batch, as long as the longest; 0: the default for real text


def random_tokenizers(vocab_size: int) -> Any:
    """Tokens that are invented words."""
    import sentencepiece

    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.data.tokenizer_pair import TokenizerPair

    model_file = io.BytesIO()
    words = (f"w{i}" for i in range(vocab_size - 4))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=words,
        model_writer=model_file,
        model_type="word",
        vocab_size=vocab_size,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    tokenizer = Tokenizer(model_file.getvalue())
    return TokenizerPair(tokenizer, tokenizer)


def random_sentences(tokenizers: Any, count: int, length: int) -> tuple[tuple[str, ...], ...]:
    """Tokens of sentences of about `length` tokens, their end symbol included."""
    rng = np.random.default_rng(0)
    tokenizer = tokenizers.source
    lengths = rng.integers(3 * length // 4, 5 * length // 4 + 1, count) - 1
    return tuple(tuple(tokenizer.tokens(rng.integers(4, tokenizer.vocab_size, n))) for n in lengths)


class Ours:
    """This package; a setting is the number of batches that the sentences are split into."""

    settings = (1, 2)

    def __init__(self, folder: str, dtype: str):
        import jax

        from transformer_jax import Translator

        loaded = Translator.load(folder)
        model = dataclasses.replace(loaded.config.model, dtype=dtype)  # type: ignore[arg-type]
        self._translator = Translator(
            dataclasses.replace(loaded.config, model=model),
            loaded.tokenizers,
            loaded.params,
            shortlist=loaded.shortlist,
        )
        self.about = f"transformer_jax, jax {jax.__version__}, {dtype}, {jax.devices()[0]}"

    def describe(self) -> str:
        return self.about

    def _settings(self, task: Task) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "beam_size": task.beam_size,
            "length_penalty": 1.0,
            "length_penalty_kind": "power",
            "stopping": "first_k",
            "at_limit": "cut",
            "max_decode_ratio": 1000.0,
            "max_decode_len": task.num_tokens or task.max_decode_len,
            "shortlist": task.shortlist,
        }
        if task.num_tokens:
            # No output may end early; all are cut at the limit.
            settings["min_decode_len"] = task.num_tokens + 1
        return settings

    def _texts(self, task: Task) -> list[str]:
        tokenizer = self._translator.tokenizers.source
        return [tokenizer.decode([tokenizer.token_id(p) for p in s]) for s in task.sentences]

    def translate(self, task: Task, setting: int = 1) -> list[list[str]]:
        settings = self._settings(task)
        if task.num_tokens:  # as many batches as `setting` says; else those of the package
            longest = max(map(len, task.sentences)) + 1
            rows = -(-len(task.sentences) // setting)
            settings["batch_tokens"] = rows * (longest + -longest % 8) * task.beam_size
        elif task.rows:
            longest = max(map(len, task.sentences)) + 1
            settings["batch_tokens"] = task.rows * (longest + -longest % 8) * task.beam_size
        outputs = self._translator.translate(self._texts(task), **settings)
        return [list(out.tokens) for out in outputs]

    def time_samples(self, task: Task, count: int) -> float:
        """Seconds for `count` samples of every sentence."""
        settings = self._settings(task) | {"method": "sample", "stopping": "exact", "beam_size": 1}
        texts = self._texts(task)
        return _time(lambda: self._translator.translate(texts, n_best=count, **settings))

    def time(self, task: Task, setting: int = 1) -> float:
        return _time(lambda: self.translate(task, setting))


class CTranslate2:
    """`translate_batch`; a setting is the number of workers and the number of threads of each."""

    settings = ((1, 2), (2, 1))

    def __init__(self, folder: str, dtype: str = "float32"):
        import ctranslate2

        # Of the types of 16 bits, its kernels for GPUs are fastest in float16.
        self._type = {"bfloat16": "float16"}.get(dtype, dtype)
        self._library, self._folder = ctranslate2, folder
        self._translators: dict[tuple[int, int], Any] = {}  # by setting

    def describe(self) -> str:
        return f"ctranslate2 {self._library.__version__}, {self._type}"

    def translate(self, task: Task, setting: tuple[int, int] = (1, 2)) -> list[list[str]]:
        if setting not in self._translators:
            self._translators[setting] = self._library.Translator(
                self._folder,
                device="auto",
                compute_type=self._type,
                inter_threads=setting[0],
                intra_threads=setting[1],
            )
        limits: dict[str, int] = {"max_decoding_length": task.max_decode_len}
        if task.num_tokens:
            limits = dict.fromkeys(("min_decoding_length", "max_decoding_length"), task.num_tokens)
        results = self._translators[setting].translate_batch(
            [list(s) for s in task.sentences],
            beam_size=task.beam_size,
            length_penalty=1.0,
            use_vmap=task.shortlist,
            # It sorts sentences by length; of real text, batches of 256 are the fastest.
            max_batch_size=(
                -(-len(task.sentences) // setting[0]) if task.num_tokens else task.rows or 256
            ),
            **limits,
        )
        return [result.hypotheses[0] for result in results]

    def time(self, task: Task, setting: tuple[int, int] = (1, 2)) -> float:
        return _time(lambda: self.translate(task, setting))


class Transformers:
    """Hugging Face's `generate`; a setting is the number of torch's threads."""

    settings = (1, 2)

    def __init__(self, folder: str, dtype: str = "float32"):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._torch, self._transformers = torch, transformers
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        )
        self._model = self._model.to(device).eval()
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self._device, self._dtype = device, dtype

    def describe(self) -> str:
        return (
            f"transformers {self._transformers.__version__}, torch "
            f"{self._torch.__version__}, {self._dtype}, {self._device}"
        )

    def translate(self, task: Task, setting: int = 2) -> list[list[str]]:
        self._torch.set_num_threads(setting)
        names = self._tokenizer.convert_tokens_to_ids
        rows = [[*names(list(s)), self._tokenizer.eos_token_id] for s in task.sentences]
        longest, pad = max(map(len, rows)), self._tokenizer.pad_token_id
        ids = self._torch.tensor([[*r, *[pad] * (longest - len(r))] for r in rows])
        mask = self._torch.tensor([[1] * len(r) + [0] * (longest - len(r)) for r in rows])
        limits: dict[str, Any] = {"max_new_tokens": task.max_decode_len}
        if task.num_tokens:
            limits = dict.fromkeys(("min_new_tokens", "max_new_tokens"), task.num_tokens)
        if task.beam_size > 1:
            limits |= {"length_penalty": 1.0, "early_stopping": True}
        with self._torch.inference_mode():
            out = self._model.generate(
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                num_beams=task.beam_size,
                do_sample=False,
                max_length=None,
                forced_eos_token_id=None,
                **limits,
            )[:, 1:].tolist()
        eos = self._tokenizer.eos_token_id
        rows = [row[: row.index(eos)] if eos in row else row for row in out]
        return [self._tokenizer.convert_ids_to_tokens(row) for row in rows]

    def time(self, task: Task, setting: int = 2) -> float:
        return _time(lambda: self.translate(task, setting))


def _time(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def latencies(
    worker: Worker, sentences: Sequence[tuple[str, ...]], task: Task, setting: Setting
) -> list[float]:
    """Seconds of each sentence, translated on its own."""
    return [
        worker.call("time", dataclasses.replace(task, sentences=(s,)), setting) for s in sentences
    ]


def exported(folder: Path, name: str) -> str:
    """The folder with the exported model for an engine."""
    names = {"ctranslate2": "ctranslate2", "transformers": "huggingface"}
    return str(folder / names.get(name, "ours.bundle"))
