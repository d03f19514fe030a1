"""Tokens that a model gets before it is trained on: `data.new_tokens`."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from transformer_jax.config import Config
from transformer_jax.config.data_fields import parse_languages
from transformer_jax.data import tokenizer_extension
from transformer_jax.data.corpus import Corpus
from transformer_jax.data.tokenizer_extension import Origins
from transformer_jax.errors import UserError
from transformer_jax.model.transformer import param_axes
from transformer_jax.training.frozen import is_frozen
from transformer_jax.translator.pretrained import Pretrained


def add_new_tokens(start: Pretrained, config: Config, corpora: Sequence[Corpus]) -> Pretrained:
    """The model with tokens of the corpora.

    The row of a new token in each table is the mean of the rows of the tokens that it was segmented
    into before.

    Args:
      start: the model, with parameters that this process can read.
      config: of the run.
      corpora: of the training data.

    Raises:
      UserError: the tokenizers cannot be extended, or the tables are not trained.
    """
    data = start.config.data
    known = {data.source_lang, data.target_lang}
    known |= {language for pair in data.train_languages for language in parse_languages(pair)}
    tables = [
        name
        for name, axes in param_axes(start.config.model).items()
        if not isinstance(axes, dict) and "vocab" in axes
    ]
    for name in tables:
        if is_frozen([name], config.train.frozen):
            raise UserError(
                f"config.data.new_tokens={config.data.new_tokens} are rows of {name}, which "
                "config.train.frozen has; leave it out, or set config.data.new_tokens=0."
            )
    extended = tokenizer_extension.extend_pair(start.tokenizers, known, config.data, corpora)
    # On the host, from where each process may put its shards on its devices.
    params = jax.tree.map(np.asarray, dict(start.params))
    for name in tables:
        is_source = name == "source_embedding"
        origins = extended.source_origins if is_source else extended.target_origins
        params[name] = _rows(params[name], origins)
    model = dataclasses.replace(
        start.config.model,
        source_vocab_size=extended.tokenizers.source.vocab_size,
        target_vocab_size=extended.tokenizers.target.vocab_size,
    )
    return dataclasses.replace(
        start,
        config=dataclasses.replace(start.config, model=model),
        tokenizers=extended.tokenizers,
        params=params,
    )


def _rows(table: np.ndarray, origins: Origins) -> np.ndarray:
    """Each row as the mean of the rows that it comes from; `[V, ...]` to `[V + new, ...]`."""
    rows = table[[ids[0] for ids in origins]]
    for row, ids in enumerate(origins):
        if len(ids) > 1:
            rows[row] = table[ids].mean(0, dtype=np.float64)
    return rows
