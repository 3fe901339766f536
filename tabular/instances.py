"""MDPs and policies to try a claim on: random ones, a combination lock, two counterexamples."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tabular.mdp import TurnMDP, check_integer, check_mdp, is_concrete, require_float64_mode


class Instance(NamedTuple):
    """An MDP with the policy a claim is about.

    Attributes:
      mdp: the MDP.
      policy: [H, S, A] action probabilities, equal in states that share a context.
      contexts: [H, S] int, what the policy sees of each state: states with the same number at the
        same turn look alike to it. Different numbers everywhere mean that nothing is hidden.
    """

    mdp: TurnMDP
    policy: jax.Array
    contexts: jax.Array


def random_mdp(
    key: jax.Array,
    num_turns: int,
    num_states: int,
    num_actions: int,
    *,
    branching: int | None = None,
    termination: float = 0.0,
    terminal_reward_only: bool = False,
) -> TurnMDP:
    """Draw an MDP: flat-Dirichlet transition rows and start, rewards uniform in (0, 1).

    Works under `jit` and under `vmap` over keys, which gives a stack of MDPs.

    Args:
      key: JAX random key.
      num_turns: H.
      num_states: S.
      num_actions: A.
      branching: how many next states each (turn, state, action) can lead to, chosen at random;
        None for all S.
      termination: upper end of the probability that the episode ends after an action; each (turn,
        state, action) draws its own uniformly between 0 and this. 0 for episodes of full length.
      terminal_reward_only: rewards are 0 before the last turn, as with an outcome reward.

    Returns:
      The MDP.

    Raises:
      ValueError: on a size below 1, `branching` outside 1..S or `termination` outside 0..1.
    """
    require_float64_mode()
    branching = num_states if branching is None else branching
    for name, size in (("turns", num_turns), ("states", num_states), ("actions", num_actions)):
        check_integer(f"num_{name}", size, 1)
    check_integer("branching", branching, 1, num_states)
    _check_probability("termination", termination)
    shape = (num_turns, num_states, num_actions)
    keys = jax.random.split(key, 5)
    rows = _random_rows(keys[0], keys[1], shape, branching)
    end = termination * _uniform(keys[2], shape)
    rewards = _uniform(keys[3], shape)
    if terminal_reward_only:
        rewards = rewards.at[:-1].set(0.0)
    start = _flat_dirichlet(keys[4], (num_states,))
    return TurnMDP((1.0 - end)[..., None] * rows, rewards, start)


def random_policy(key: jax.Array, mdp: TurnMDP, concentration: float = 1.0) -> jax.Array:
    """Draw a policy [H, S, A] whose rows are Dirichlet(concentration, ..., concentration).

    Below 1 rows are nearly deterministic, far above 1 nearly uniform. Raises ValueError unless
    `concentration` is positive.
    """
    check_mdp(mdp)
    if is_concrete(concentration) and not 0.0 < concentration < float("inf"):
        raise ValueError(f"concentration is {concentration}: give a positive finite number")
    alpha = jnp.full(mdp.num_actions, concentration, dtype=jnp.float64)
    shape = (mdp.num_turns, mdp.num_states)
    return jax.random.dirichlet(key, alpha, shape, dtype=jnp.float64)


def uniform_policy(mdp: TurnMDP) -> jax.Array:
    """The policy [H, S, A] that gives every action probability 1/A."""
    check_mdp(mdp)
    return jnp.full(mdp.rewards.shape, 1.0 / mdp.num_actions, dtype=jnp.float64)


def lock(num_turns: int, num_actions: int = 2) -> TurnMDP:
    """A combination lock: reward 1 at the last turn if every action was right, else 0.

    State 0 is alive, state 1 is dead and never left; action 0 is right at every turn. Under
    `lock_policy` with success probability p, in units of reward and with H turns,

        V_h(alive) = p^(H-h),   V_h(dead) = 0,
        Var V_h = p^(2H-h) (1 - p^h),   E[A_h^2] = p^(2H-h-1) (1 - p).

    Raises ValueError unless there are at least 1 turn and 2 actions.
    """
    require_float64_mode()
    check_integer("num_turns", num_turns, 1)
    check_integer("num_actions", num_actions, 2)
    alive, dead, right = 0, 1, 0
    transitions = np.zeros((num_turns, 2, num_actions, 2))
    transitions[:, :, :, dead] = 1.0
    transitions[:, alive, right] = [1.0, 0.0]
    rewards = np.zeros((num_turns, 2, num_actions))
    rewards[-1, alive, right] = 1.0
    return TurnMDP(transitions, rewards, np.array([1.0, 0.0]))


def lock_policy(mdp: TurnMDP, success_probability: float) -> jax.Array:
    """The policy [H, S, A] with action 0 at the given probability; the others share the rest.

    Raises ValueError if the probability is outside 0..1 or there is only one action.
    """
    check_mdp(mdp)
    _check_probability("success_probability", success_probability)
    check_integer("mdp.num_actions", mdp.num_actions, 2)
    others = (1.0 - success_probability) / (mdp.num_actions - 1)
    policy = jnp.full(mdp.rewards.shape, others, dtype=jnp.float64)
    return policy.at[:, :, 0].set(success_probability)


def toy_reverse_order() -> Instance:
    """Two turns where updating the first turn first locks in the worse branch.

    Turn 0 starts in state 0 and its action is the state of turn 1, where the rewards r(s, a) are
    (0.5, 0.5) in state 0 and (0, 0.9) in state 1. Under the uniform policy state 0 looks better
    (0.5 against 0.45): a greedy first turn goes there and, with data of its own, never learns what
    state 1 is worth, so performance stays at 0.5. Greedy updates from the last turn to the first
    reach 0.9 in one sweep, the order SeeUPO (arXiv 2602.06554) asks for.

    Returns:
      `Instance` with the uniform policy; every state is its own context.
    """
    mdp = _action_becomes_state([[0.5, 0.5], [0.0, 0.9]])
    return Instance(mdp, uniform_policy(mdp), jnp.array([[0, 1], [0, 1]]))


def toy_hidden_action() -> Instance:
    """Two turns that must disagree, where the second turn cannot see the first action.

    Turn 0 starts in state 0 and its action is the state of turn 1; the reward is 1 if the two
    actions differ. Both turns choose action 0 with probability 0.4, so performance is 0.48. Both
    best responses at once choose action 0 and get 0, worse than before; one after the other, with
    the ratio of the turn already updated carried along (SeeUPO, arXiv 2602.06554), they reach 1.

    Returns:
      `Instance` with that policy; both states of turn 1 share a context, and so do those of turn 0,
      of which only state 0 occurs.
    """
    mdp = _action_becomes_state([[0.0, 1.0], [1.0, 0.0]])
    policy = jnp.broadcast_to(jnp.array([0.4, 0.6]), mdp.rewards.shape)
    return Instance(mdp, policy, jnp.zeros((2, 2), dtype=int))


def _action_becomes_state(last_rewards):
    """Two turns from state 0; the action of turn 0 is the state of turn 1, which pays and ends."""
    require_float64_mode()
    transitions = np.zeros((2, 2, 2, 2))
    transitions[0] = np.eye(2)[None]
    rewards = np.zeros((2, 2, 2))
    rewards[1] = last_rewards
    return TurnMDP(transitions, rewards, np.array([1.0, 0.0]))


def _random_rows(row_key, successor_key, shape, branching):
    """Flat-Dirichlet rows [H, S, A, S] over `branching` successors, themselves drawn at random."""
    num_states = shape[1]
    probabilities = _flat_dirichlet(row_key, (*shape, branching))
    order = _uniform(successor_key, (*shape, num_states)).argsort(-1)
    rows = jnp.zeros((*shape, num_states))
    return jnp.put_along_axis(rows, order[..., :branching], probabilities, -1, inplace=False)


def _flat_dirichlet(key, shape):
    """Rows along the last axis, uniform on the simplex: normalised exponentials.

    `jax.random.dirichlet` draws the same through a general gamma sampler that takes seconds to
    compile for every new shape.
    """
    draws = -jnp.log(_uniform(key, shape))
    return draws / draws.sum(-1, keepdims=True)


def _uniform(key, shape):
    """Uniform draws in (0, 1), float64."""
    # Drawn flat because the generator compiles up to ten times faster for one axis than for four;
    # above 0 so that a row of one exponential is never 0 / 0.
    smallest = float(jnp.finfo(jnp.float64).tiny)
    flat = jax.random.uniform(key, (math.prod(shape),), dtype=jnp.float64, minval=smallest)
    return flat.reshape(shape)


def _check_probability(name, value):
    if is_concrete(value) and not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}: choose a probability from 0 to 1")
