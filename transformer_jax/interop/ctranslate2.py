"""Export to a CTranslate2 directory, through `ctranslate2.specs`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath
from jax.typing import ArrayLike

from transformer_jax.config import Config, ModelConfig
from transformer_jax.data.foreign_tokenizers import JsonTokenizer
from transformer_jax.data.tokenizer_pair import TokenizerPair
from transformer_jax.errors import UserError
from transformer_jax.interop import capabilities, layout
from transformer_jax.interop.parity import Batch, Examples, Reference, log_softmax

# Largest difference in a token's log-probability that a comparison accepts. None: the numbers of
# int8 differ too much to find mistakes by them; BLEU judges it.
TOLERANCES: dict[str, float | None] = {"float32": 1e-3, "float16": 5e-2, "int8": None}
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def require() -> None:
    """Raises a `UserError` if ctranslate2 is not installed."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise UserError(
            "A CTranslate2 export needs ctranslate2; install it: pip install 'ctranslate2>=4.8'."
        ) from error


def write_directory(
    folder: epath.Path,
    config: Config,
    tokenizers: TokenizerPair,
    params: layout.Params,
    quantization: str = "float32",
) -> None:
    """Writes `model.bin`, vocabularies, `config.json` and the tokenizers.

    The end symbol is added to sources by CTranslate2 itself (`add_source_eos`).

    Args:
      folder: created if it is missing.
      config: of the model.
      tokenizers: their tokens become the vocabularies.
      params: our parameters.
      quantization: float32, float16 or int8.
    """
    from ctranslate2.specs import transformer_spec

    model = config.model
    capabilities.check("ctranslate2", model)
    spec = transformer_spec.TransformerSpec(
        _stack(transformer_spec.TransformerEncoderSpec, model, model.num_encoder_layers),
        _stack(
            transformer_spec.TransformerDecoderSpec, model.for_decoder(), model.num_decoder_layers
        ),
    )
    _fill(spec, model, params)
    source, target = tokenizers.source, tokenizers.target
    spec.register_source_vocabulary(source.tokens(range(source.vocab_size)))
    tokens = target.tokens(range(target.vocab_size))
    spec.register_target_vocabulary(tokens)
    spec.config.unk_token = tokens[target.unk_id]
    spec.config.bos_token = tokens[model.decoder_start_id]
    spec.config.eos_token = tokens[target.eos_id]
    spec.config.decoder_start_token = tokens[model.decoder_start_id]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    if isinstance(source, JsonTokenizer):
        (folder / "tokenizer.json").write_bytes(source.model)
        return
    (folder / "source.spm").write_bytes(source.model)
    (folder / "target.spm").write_bytes(target.model)


def _stack(spec_class: Any, model: ModelConfig, num_layers: int) -> Any:
    from ctranslate2.specs import common_spec

    rotary: dict[str, Any] = {}
    if model.positional == "rotary":  # all of a head, in halves
        rotary = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": model.positional_base}
    return spec_class(
        num_layers,
        model.num_heads,
        pre_norm=model.norm_position == "pre",
        activation=common_spec.Activation[ACTIVATIONS[model.activation]],
        head_dim=model.head_dim,
        **rotary,
    )


def _fill(spec: Any, model: ModelConfig, params: layout.Params) -> None:
    # A rotary encoder adds a table nevertheless, a rotary decoder does not.
    zeros = np.zeros((model.max_len, model.d_model), np.float32)
    source_table, target_table = layout.position_tables(model, params) or (zeros, None)
    target = params["target_embedding"]
    tables = {"source_embedding": target, "output_embedding": target, **params}
    spec.encoder.embeddings[0].weight = _array(tables["source_embedding"])
    spec.decoder.embeddings.weight = _array(target)
    spec.decoder.projection.weight = _array(tables["output_embedding"])
    if model.output_bias:
        spec.decoder.projection.bias = _array(params["output_bias"])
    for part, table, name in (
        (spec.encoder, source_table, "encoder"),
        (spec.decoder, target_table, "decoder"),
    ):
        part.scale_embeddings = model.scale_embeddings
        if table is not None:
            part.position_encodings.encodings = table
        if model.norm_position == "pre":
            _fill_norm(part.layer_norm, params[f"{name}_norm"])
        for number, layer in enumerate(part.layer):
            _fill_layer(layer, params[f"{name}_layers_{number}"])


def _fill_layer(layer: Any, params: layout.Params) -> None:
    attention = params["self_attention"]
    _fill_linear(
        layer.self_attention.linear[0], attention["query"], attention["key"], attention["value"]
    )
    _fill_linear(layer.self_attention.linear[1], attention["out"])
    _fill_norm(layer.self_attention.layer_norm, params["self_attention_norm"])
    if "cross_attention" in params:
        attention = params["cross_attention"]
        _fill_linear(layer.attention.linear[0], attention["query"])
        _fill_linear(layer.attention.linear[1], attention["key"], attention["value"])
        _fill_linear(layer.attention.linear[2], attention["out"])
        _fill_norm(layer.attention.layer_norm, params["cross_attention_norm"])
    _fill_linear(layer.ffn.linear_0, params["feed_forward"]["up"])
    _fill_linear(layer.ffn.linear_1, params["feed_forward"]["down"])
    _fill_norm(layer.ffn.layer_norm, params["feed_forward_norm"])


def _fill_linear(spec: Any, *denses: layout.Params) -> None:
    """One product for all `denses`, whose outputs follow each other: `weight` `[out, in]`."""
    spec.weight = np.concatenate(
        [_array(d["kernel"]).reshape(-1, d["bias"].size).T for d in denses]
    )
    spec.bias = np.concatenate([_array(d["bias"]).reshape(-1) for d in denses])


def _fill_norm(spec: Any, params: layout.Params) -> None:
    spec.gamma, spec.beta = _array(params["norm"]["scale"]), _array(params["norm"]["bias"])


def _array(x: ArrayLike) -> np.ndarray:
    return np.array(x, np.float32)  # a copy: quantization works in place


class CTranslate2Peer:
    """The directory as `ctranslate2.Translator` loads it, on the CPU."""

    measure = "log-probability"

    def __init__(
        self, folder: epath.Path, reference: Reference, examples: Examples, quantization: str
    ):
        import ctranslate2

        self.name = f"ctranslate2 {ctranslate2.__version__} ({quantization})"
        self.tolerance = TOLERANCES[quantization]
        self._translator = ctranslate2.Translator(str(folder), device="cpu")
        self._examples, self._tokenizers = examples, reference.engine.tokenizers
        suppressed = self._tokenizers.target.tokens(reference.config.decode.suppressed_ids)
        self._suppressed = [[token] for token in suppressed] or None
        self._prefix = self._tokenizers.target.tokens(examples.target_prefix)

    def _sources(self, batch: Batch) -> list[list[str]]:
        ids = self._examples.source_ids
        return [self._tokenizers.source.tokens(ids[i][:-1]) for i in batch.rows]

    def largest_difference(self, batch: Batch) -> float:
        outputs = [self._tokenizers.target.tokens(self._examples.output_ids[i]) for i in batch.rows]
        targets = [[*self._prefix, *tokens] for tokens in outputs]
        scored = self._translator.score_batch(self._sources(batch), targets)
        largest = 0.0
        for row, result in enumerate(scored):
            tokens = batch.targets[row][batch.mask[row]]
            ours = log_softmax(batch.logits[row])[np.arange(len(tokens)), tokens]
            largest = max(largest, float(np.max(np.abs(np.asarray(result.log_probs) - ours))))
        return largest

    def outputs(self, batch: Batch) -> list[list[int]]:
        sources = self._sources(batch)
        results = self._translator.translate_batch(
            sources,
            target_prefix=[self._prefix or None] * len(sources),
            beam_size=1,
            max_decoding_length=self._examples.max_decode_len,
            suppress_sequences=self._suppressed,
        )
        target, start = self._tokenizers.target, len(self._prefix)
        return [[target.token_id(p) for p in r.hypotheses[0][start:]] for r in results]

    def translate(self, source_ids: Sequence[list[int]], search: dict[str, Any]) -> list[str]:
        """Translations of tokenized sentences.

        Args:
          source_ids: with language tag, without end symbol.
          search: arguments of `translate_batch`.
        """
        sources = [self._tokenizers.source.tokens(ids) for ids in source_ids]
        prefix = [self._prefix] * len(sources) if self._prefix else None
        results = self._translator.translate_batch(
            sources, target_prefix=prefix, max_batch_size=1024, batch_type="tokens", **search
        )
        target, start = self._tokenizers.target, len(self._prefix)
        hypotheses = (result.hypotheses[0][start:] for result in results)
        return [target.decode(target.token_id(t) for t in tokens) for tokens in hypotheses]
