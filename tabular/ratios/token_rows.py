"""Exact batches at token level: what a language-model loss sees, weighted by exact probabilities.

An action is a string of L tokens (`tabular.policy_classes.token_tree`). A row holds tokens of one
episode or of one turn, in the layout of `rtpo_jax.core`; with exact probabilities as weights a sum over
rows is an expectation, and any loss written for sampled tokens can be computed without sampling.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rtpo_jax import core
from tabular.exact import occupancy
from tabular.mdp import TurnMDP, check_policy
from tabular.paths import Paths, path_probabilities


class TokenRows(NamedTuple):
    """N rows of T tokens.

    Attributes:
      behavior_log_probs: [N, T] of each token under the policy that sampled it, in nats.
      advantages: [N, T] of each token, in units of reward.
      weights: [N, T] measure of the objective; 0 outside actions.
      turn_ids: [N, T] int turn of each token inside its row, -1 outside actions.
    """

    behavior_log_probs: jax.Array
    advantages: jax.Array
    weights: jax.Array
    turn_ids: jax.Array

    @property
    def action_mask(self) -> jax.Array:
        """[N, T] bool, True on tokens of actions."""
        return self.turn_ids >= 0


def episode_tokens(table: jax.Array, paths: Paths) -> jax.Array:
    """Entries [M, H L] of a token table [H, S, A, L] along each episode; 0 after its end."""
    turns = np.arange(table.shape[0])[None, :]
    found = table[turns, paths.states, paths.actions]
    kept = jnp.where(paths.turn_mask[:, :, None], found, 0.0)
    return kept.reshape(kept.shape[0], -1)


def episode_rows(
    mdp: TurnMDP, behavior_token_log_probs: jax.Array, advantages: jax.Array, paths: Paths
) -> TokenRows:
    """One row an episode: the objective is E[(1 / |y|) sum_t .], |y| the tokens of the episode.

    Args:
      mdp: the MDP.
      behavior_token_log_probs: [H, S, A, L].
      advantages: [M, H L] of each token.
      paths: M episodes.

    Returns:
      `TokenRows` with N = M and T = H L; the weights sum to 1. Raises ValueError as
      `tabular.paths.path_probabilities`.
    """
    behavior = jnp.exp(behavior_token_log_probs.sum(-1))
    length = behavior_token_log_probs.shape[-1]
    turns = np.where(paths.turn_mask, np.arange(mdp.num_turns)[None, :], -1)
    turn_ids = np.repeat(turns, length, axis=1)
    weights = core.sequence_mean_weights(
        turn_ids >= 0, row_weights=path_probabilities(mdp, behavior, paths)
    )
    log_probs = episode_tokens(behavior_token_log_probs, paths)
    return TokenRows(log_probs, advantages, weights, turn_ids)


def turn_rows(
    mdp: TurnMDP, behavior_token_log_probs: jax.Array, advantages: jax.Array
) -> TokenRows:
    """One row for every (h, s, a): E[sum_t .] / E[|y|], for any horizon without listing episodes.

    The measure of a row is d_h(s) b_h(a | s), the same for its L tokens. Where all episodes have H
    turns, and the advantage is a function of turn, state and tokens, it is `episode_rows` with equal
    tokens added up; where they end early the mean over tokens replaces the mean over episodes.

    Args:
      mdp: the MDP.
      behavior_token_log_probs: [H, S, A, L].
      advantages: [H, S, A, L].

    Returns:
      `TokenRows` with N = H S A, T = L and one turn a row; the weights sum to 1. Raises ValueError
      on a malformed behaviour policy.
    """
    behavior = check_policy(mdp, jnp.exp(behavior_token_log_probs.sum(-1)))
    length = behavior_token_log_probs.shape[-1]
    visits = (occupancy(mdp, behavior)[:, :, None] * behavior).reshape(-1, 1)
    weights = jnp.broadcast_to(visits / (length * visits.sum()), (visits.shape[0], length))
    return TokenRows(
        behavior_token_log_probs.reshape(-1, length),
        advantages.reshape(-1, length),
        weights,
        np.zeros((visits.shape[0], length), int),
    )


def prefix_values(action_values: jax.Array, token_log_probs: jax.Array) -> list[jax.Array]:
    """Expected action value after every prefix of an action, under the policy of the tokens.

        Q(s, a_<=j) = sum_v pi(v | s, a_<=j) Q(s, a_<=j v),   Q of a whole action = Q_h(s, a)

    Args:
      action_values: [H, S, A], or any table of what whole actions are worth.
      token_log_probs: [H, S, A, L].

    Returns:
      L + 1 arrays: entry j is [H, S, V^j], V the number of tokens; entry 0 is the state value.
    """
    num_actions, length = token_log_probs.shape[-2:]
    num_tokens = round(num_actions ** (1 / length))
    found = [action_values]
    for j in reversed(range(length)):
        shape = (*found[0].shape[:2], num_tokens**j, num_tokens)
        stride = num_tokens ** (length - j - 1)
        probabilities = jnp.exp(token_log_probs[:, :, ::stride, j]).reshape(shape)
        found.insert(0, (probabilities * found[0].reshape(shape)).sum(-1))
    return found


def spread_prefixes(table: jax.Array, num_actions: int) -> jax.Array:
    """A table [H, S, V^j] of prefixes as [H, S, A]: every action gets the entry of its own prefix."""
    return jnp.repeat(table, num_actions // table.shape[-1], axis=-1)


def prefix_advantages(found: list[jax.Array]) -> jax.Array:
    """Differences of prefix values, [H, S, A, L]: Q(s, a_<=t) - Q(s, a_<t) for token t.

    The tokens' advantages sum to the action's, Q_h(s, a) - V_h(s). With the prefix values of a
    critic instead of the exact ones this is its one-step (trace decay 0) estimate.
    """
    num_actions = found[-1].shape[-1]
    whole = jnp.stack([spread_prefixes(table, num_actions) for table in found], axis=-1)
    return whole[..., 1:] - whole[..., :-1]
