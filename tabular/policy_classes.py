"""Policy classes: how parameters become action probabilities, with what they share between turns."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tabular.mdp import check_integer


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyClass:
    """A differentiable family of policies.

    Attributes:
      shape: shape of the parameter array.
      logits: from parameters to the logits [H, S, A, ..., V] of every choice; the last axis is
        normalised. Without extra axes a choice is an action; in a token tree it is a token.
      choices: [..., T] which logit each token of an action takes, see `token_tree`; None when an
        action is one choice.
    """

    shape: tuple[int, ...]
    logits: Callable[[jax.Array], jax.Array]
    choices: tuple[np.ndarray, np.ndarray] | None = None

    def token_log_probs(self, params: jax.Array) -> jax.Array:
        """Log-probability of each token of each action, [H, S, A, T]; T = 1 without a tree."""
        log_probs = jax.nn.log_softmax(self.logits(params))
        if self.choices is None:
            return log_probs[..., None]
        return log_probs[:, :, self.choices[0], self.choices[1]]

    def log_probs(self, params: jax.Array) -> jax.Array:
        """Log-probability of each action, [H, S, A]."""
        return self.token_log_probs(params).sum(-1)

    def policy(self, params: jax.Array) -> jax.Array:
        """Action probabilities, [H, S, A]."""
        return jnp.exp(self.log_probs(params))

    def init(self, key: jax.Array, scale: float = 1.0) -> jax.Array:
        """Parameters drawn from a normal distribution with standard deviation `scale`."""
        # Drawn flat: compiles faster for one axis than for several.
        flat = jax.random.normal(key, (int(np.prod(self.shape)),), dtype=jnp.float64)
        return scale * flat.reshape(self.shape)


def per_turn_table(shape: tuple[int, int, int]) -> PolicyClass:
    """One softmax for every turn and state: nothing is shared, parameters [H, S, A] are logits.

    The class that the convergence proofs of RTPO (Theorem 1) and SeeUPO are about.
    """
    return PolicyClass(shape, lambda params: params)


def shared_logits(shape: tuple[int, int, int]) -> PolicyClass:
    """One softmax for every state, used at all turns: parameters [S, A].

    The smallest model of what a language model does: what is learned at one turn moves the others.
    """
    return PolicyClass(shape[1:], lambda params: jnp.broadcast_to(params, shape))


def linear(features: jax.Array) -> PolicyClass:
    """Logits linear in D shared parameters: logits_h(s, a) = sum_d features[h, s, a, d] params[d].

    Raises ValueError unless features are [H, S, A, D].
    """
    if features.ndim != 4:
        raise ValueError(f"features has shape {features.shape}: give [H, S, A, D]")
    return PolicyClass(features.shape[-1:], lambda params: features @ params)


def aliased(contexts: jax.Array, num_actions: int) -> PolicyClass:
    """One softmax for every turn and context; states [H, S] with the same number share it.

    The policies that see only psi(S): parameters [H, C, A] with C = 1 + the largest number. Raises
    ValueError for a negative number; they have to be concrete.
    """
    contexts = np.asarray(contexts)
    check_integer("contexts.min()", contexts.min(), 0)
    num_contexts = int(contexts.max()) + 1
    turns = np.arange(contexts.shape[0])[:, None]
    shape = (contexts.shape[0], num_contexts, num_actions)
    return PolicyClass(shape, lambda params: params[turns, contexts])


def token_tree(num_turns: int, num_states: int, num_tokens: int, length: int) -> PolicyClass:
    """Actions that are strings of `length` tokens, drawn one after the other.

    Action a is the string of its digits in base `num_tokens`, the first token first, so A =
    num_tokens^length. Every prefix has a softmax of its own: parameters [H, S, nodes, num_tokens].

        log pi_h(a | s) = sum_t log pi_h(a_t | s, a_<t)

    Raises ValueError unless there are at least 2 tokens and length 1.
    """
    check_integer("num_tokens", num_tokens, 2)
    check_integer("length", length, 1)
    digits = np.indices((num_tokens,) * length).reshape(length, -1).T
    nodes = np.zeros_like(digits)
    first = 0
    for t in range(length):
        prefix = digits[:, :t] @ num_tokens ** np.arange(t - 1, -1, -1) if t else 0
        nodes[:, t] = first + prefix
        first += num_tokens**t
    shape = (num_turns, num_states, first, num_tokens)
    return PolicyClass(shape, lambda params: params, (nodes, digits))
