"""The jitted sampler: one prefill of the distinct contexts, one decode loop for all their samples.

Contexts are right-padded to a few lengths; rows that share a context share its prefill. Decoded
tokens stand at the same cache slot in every row, behind the padded context, while rotary positions
count real tokens, so the numbers equal a plain forward pass over context and action. Log-probabilities
are those of the distribution that was sampled from, at the sampling temperature.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax.models import (
    TransformerConfig,
    decode_step,
    expand_cache,
    layer_parameters,
    prefill,
    visible_slots,
)
from rtpo_jax.rollouts.buckets import bucket, pad_ragged, power_of_two


class Samples(NamedTuple):
    """Sampled actions, in the order of the contexts."""

    actions: list[tuple[int, ...]]  # ids, the end id included when it was chosen
    log_probs: list[np.ndarray]  # float32 [len(action)] under the sampling distribution
    prefill_tokens: int  # context tokens run through the model (distinct contexts, unpadded)


class DecodeState(NamedTuple):
    """Carry of the decode loop; N rows, T new tokens."""

    step: jax.Array  # tokens written so far
    tokens: jax.Array  # [N, T] int32
    log_probs: jax.Array  # [N, T] float32
    finished: jax.Array  # [N] bool
    caches: tuple  # per layer (keys, values)


def sample_token(logits: jax.Array, keys: jax.Array, temperature: jax.Array):
    """Draw one token a row from softmax(logits / temperature); temperature 0 takes the argmax.

    Args:
      logits: [N, V] float32.
      keys: [N] random keys, one a row, so that a row's draw does not depend on the batch.
      temperature: scalar >= 0. At 0 the log-probability is the one at temperature 1.

    Returns:
      tokens [N] int32 and their log-probabilities [N].
    """
    greedy = temperature == 0
    log_probs = jax.nn.log_softmax(logits / jnp.where(greedy, 1.0, temperature))
    drawn = jax.vmap(jax.random.categorical)(keys, log_probs)
    tokens = jnp.where(greedy, jnp.argmax(logits, axis=-1), drawn).astype(jnp.int32)
    return tokens, jnp.take_along_axis(log_probs, tokens[:, None], axis=-1)[:, 0]


@partial(jax.jit, static_argnums=0)
def _prefill(config, params, tokens, lengths):
    return prefill(config, params, tokens, lengths)


@partial(jax.jit, static_argnums=0)
def _expand(num_new, logits, caches, lengths, context_index):
    """Hand every row the cache, the next-token logits and the length of its context."""
    caches = expand_cache(caches, context_index, num_new)
    return logits[context_index], caches, lengths[context_index]


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def _decode(config, num_new, end_id, params, caches, logits, lengths, num_rows, key, temperature):
    """Decode until every row chose `end_id` or has `num_new` tokens; rows >= num_rows are padding."""
    rows = jnp.arange(logits.shape[0])
    row_keys = jax.vmap(partial(jax.random.fold_in, key))(rows)
    width = caches[0][0].shape[-2] - num_new  # context slots
    layers = layer_parameters(config, params)

    def choose(state: DecodeState, logits, step) -> DecodeState:
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(row_keys, step)
        token, log_prob = sample_token(logits, step_keys, temperature)
        return DecodeState(
            step=step + 1,
            tokens=state.tokens.at[:, step].set(token),
            log_probs=state.log_probs.at[:, step].set(log_prob),
            finished=state.finished | (token == end_id),
            caches=state.caches,
        )

    def body(state: DecodeState) -> DecodeState:
        previous = state.step - 1
        slot = width + previous
        logits, caches = decode_step(
            config,
            params,
            layers,
            state.caches,
            jax.lax.dynamic_index_in_dim(state.tokens, previous, axis=1, keepdims=False),
            lengths + previous,
            slot,
            visible_slots(lengths, width, width + num_new, slot),
        )
        return choose(state._replace(caches=caches), logits, state.step)

    empty = DecodeState(
        step=jnp.int32(0),
        tokens=jnp.zeros((rows.size, num_new), jnp.int32),
        log_probs=jnp.zeros((rows.size, num_new), jnp.float32),
        finished=rows >= num_rows,
        caches=caches,
    )
    final = jax.lax.while_loop(
        lambda state: (state.step < num_new) & ~jnp.all(state.finished),
        body,
        choose(empty, logits, jnp.int32(0)),
    )
    return final.tokens, final.log_probs, final.caches


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Samples actions for many contexts at once.

    `context_buckets` are the padded context lengths; a longer context is an error. Counts of rows
    and of distinct contexts are rounded up to powers of two (at least `least_rows`), and batches
    above `most_rows` are cut.
    """

    config: TransformerConfig
    end_id: int
    pad_id: int
    max_new_tokens: int
    context_buckets: tuple[int, ...]
    least_rows: int = 16
    most_rows: int = 256

    def sample(
        self,
        params,
        contexts: Sequence[tuple[int, ...]],
        key: jax.Array,
        temperature: float = 1.0,
    ) -> Samples:
        """One action for every context; equal contexts are prefilled once."""
        if temperature < 0:
            raise ValueError(f"temperature={temperature}: use 0 for greedy decoding, or more")
        actions, log_probs, prefill_tokens = [], [], 0
        for chunk, start in enumerate(range(0, len(contexts), self.most_rows)):
            part = self._sample_chunk(
                params,
                contexts[start : start + self.most_rows],
                jax.random.fold_in(key, chunk),
                temperature,
            )
            actions += part.actions
            log_probs += part.log_probs
            prefill_tokens += part.prefill_tokens
        return Samples(actions, log_probs, prefill_tokens)

    def _sample_chunk(self, params, contexts, key, temperature) -> Samples:
        distinct = list(dict.fromkeys(contexts))
        where = {context: index for index, context in enumerate(distinct)}
        num_rows = power_of_two(len(contexts), self.least_rows)
        index = np.zeros(num_rows, np.int32)
        index[: len(contexts)] = [where[context] for context in contexts]
        logits, caches, lengths = self._prefill_distinct(params, distinct, index)
        tokens, log_probs, _ = _decode(
            self.config,
            self.max_new_tokens,
            self.end_id,
            params,
            caches,
            logits,
            lengths,
            np.int32(len(contexts)),
            key,
            np.float32(temperature),
        )
        tokens, log_probs = np.asarray(tokens), np.asarray(log_probs)
        sizes = [self._action_length(row) for row in tokens[: len(contexts)]]
        return Samples(
            actions=[tuple(tokens[i, :size].tolist()) for i, size in enumerate(sizes)],
            log_probs=[log_probs[i, :size] for i, size in enumerate(sizes)],
            prefill_tokens=sum(map(len, distinct)),
        )

    def _prefill_distinct(self, params, distinct, index):
        count = power_of_two(len(distinct), self.least_rows)
        width = bucket(max(map(len, distinct)), self.context_buckets, "context length")
        lengths = np.ones(count, np.int32)
        lengths[: len(distinct)] = [len(context) for context in distinct]
        if not lengths.all():
            raise ValueError("context length 0: every context needs at least one token")
        tokens = pad_ragged(distinct, (count, width), self.pad_id, np.int32)
        logits, caches = _prefill(self.config, params, tokens, lengths)
        return _expand(self.max_new_tokens, logits, caches, lengths, index)

    def _action_length(self, tokens: np.ndarray) -> int:
        ends = np.flatnonzero(tokens == self.end_id)
        return int(ends[0]) + 1 if ends.size else len(tokens)
