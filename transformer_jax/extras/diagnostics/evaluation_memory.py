"""The memory of an evaluation while a model is trained, by the compiler."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.config import Config
from transformer_jax.data.tokenizer_pair import SpecialIds
from transformer_jax.model import decoder_weights
from transformer_jax.model.transformer import param_shapes
from transformer_jax.search.search_settings import SearchConstraints, structure_of, values_of
from transformer_jax.training.evaluate import evaluation_search
from transformer_jax.training.runners import Runner
from transformer_jax.translator import batching
from transformer_jax.translator.batch_functions import DeviceParams
from transformer_jax.translator.batching import TokenRows
from transformer_jax.translator.programs import AXIS, Programs
from transformer_jax.translator.scoring import BATCH_TOKENS
from transformer_jax.translator.translation_settings import TranslationSettings

# No token has these: programs are as large for any others.
_IDS = SpecialIds(source_pad=0, source_eos=0, target_pad=0, target_eos=0, decoder_start=0)


def compile_evaluation(config: Config, runner: Runner, longest: int) -> list[jax.stages.Compiled]:
    """Compiles search and scores of the largest batches of an evaluation, which are not run.

    Args:
      config: of the run.
      runner: of the run; its devices need not be here.
      longest: tokens of the longest sentence.

    Returns:
      The programs, whose arguments are the parameters as an evaluation lays them out, and a batch.
    """
    model, decode = config.model, evaluation_search(config)
    length = batching.padded_length(longest, model.max_len)
    programs = Programs((model,), _IDS, (), shardings=runner.model_shardings)
    params = _laid_out(config, runner)
    num_sharing = runner.mesh.shape[AXIS]

    def sources(batch_tokens: int) -> TokenRows:
        rows = batching.all_row_options(length, batch_tokens, num_sharing)[-1]
        return batching.pad_rows([], rows, length, 0)

    by_row = NamedSharding(runner.mesh, PartitionSpec(AXIS))

    def compiled(function, batch, **static):
        shapes = jax.tree.map(lambda x: _shape(x, by_row), batch)
        return programs.compile(function, params, shapes, static, sharded=True)

    searched = sources(max(1, decode.batch_tokens // decode.beam_size))
    scored = sources(BATCH_TOKENS)
    zeros, seeds = searched.lengths, searched.lengths.astype(np.uint32)
    values = values_of([decode], len(zeros))
    constraints = SearchConstraints(zeros, zeros, values, zeros, num_free=zeros, seeds=seeds)
    return [
        compiled(
            programs.functions.search,
            (searched, constraints, None),
            structure=structure_of(decode),
            max_decode_len=TranslationSettings(decode).output_room(length, model.max_len),
        ),
        compiled(programs.functions.score, (scored, scored)),
    ]


def _laid_out(config: Config, runner: Runner) -> DeviceParams:
    """Shapes and shardings of the parameters as search and scores read them."""

    @jax.jit
    def lay_out(params):
        return DeviceParams((decoder_weights.for_inference(config.model, dict(params)),), None)

    params = jax.tree.map(_shape, param_shapes(config.model), runner.model_shardings)
    shardings = lay_out.lower(params).compile().output_shardings
    return jax.tree.map(_shape, jax.eval_shape(lay_out, params), shardings)


def _shape(x: jax.ShapeDtypeStruct | np.ndarray, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
