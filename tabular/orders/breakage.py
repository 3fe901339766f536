"""MDPs in which the assumptions of a method are broken one by one, by any amount.

SeeUPO (arXiv 2602.06554) is proved for a multi-turn contextual bandit: one reward at the end, the whole
history seen, feedback that is a function of the action. PPO with generalised advantages needs a critic
that is right. RTPO (arXiv 2608.18682) needs an environment that can be put back into a boundary
state. Each is a number here, 0 where the assumption holds, so that all methods can be run on the
same MDPs while one number grows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tabular.exact import occupancy, values
from tabular.instances import Instance, random_mdp, uniform_policy
from tabular.mdp import TurnMDP, check_policy
from tabular.objectives import maximise_surrogate, mean_credit, merge_contexts


class Breakage(NamedTuple):
    """How far each assumption is from true; 0 everywhere is where all methods have their theorem.

    Attributes:
      rewards: size of rewards on the way, by the potentials below; the outcome is in (0, 1).
      observation: probability that the policy sees a random state instead of the true one.
      transitions: weight of random transitions against deterministic ones.
      value_noise: standard deviation of the critic's error, drawn anew in each iteration.
      value_bias: size of an error of the critic that stays.
      forks: probability that a restored boundary is another one of the same turn.
    """

    rewards: float = 0.0
    observation: float = 0.0
    transitions: float = 0.0
    value_noise: float = 0.0
    value_bias: float = 0.0
    forks: float = 0.0


def broken_instance(
    key: jax.Array, num_turns: int, num_states: int, num_actions: int, breakage: Breakage
) -> Instance:
    """A random MDP whose states are pairs of a true state and what the policy sees of it.

    State s N + o stands for true state s seen as o, N = num_states. Transitions are those of s to a
    new true state, times the chance of each observation,

        P(o | s) = (1 - observation) 1{o = s} + observation / N,

    so without observation noise only the pairs (s, s) occur. Rewards on the way come from standard
    normal potentials F_h(s), F_0 = F_H = 0, times their size k,

        r_h(s, a) = k (sum_s' P_h(s' | s, a) F_{h+1}(s') - F_h(s))  (+ the outcome at the last turn),

    which change no policy's performance (Ng, Harada and Russell, 1999): they move the outcome to
    earlier turns and add chance to the return, nothing else. With one key, two breakages differ by
    what is broken only.

    Args:
      key: JAX random key.
      num_turns: H.
      num_states: N true states; the MDP has N^2.
      num_actions: A.
      breakage: its first three numbers are used; they may be traced.

    Returns:
      `Instance` with the uniform policy; the contexts are the observations.
    """
    keys = jax.random.split(key, 3)
    shape = (num_turns, num_states, num_actions)
    fixed = random_mdp(keys[0], *shape, branching=1, terminal_reward_only=True)
    loose = random_mdp(keys[1], *shape)
    mixed = (1.0 - breakage.transitions) * fixed.transitions
    mixed = mixed + breakage.transitions * loose.transitions
    inner = jax.random.normal(keys[2], ((num_turns - 1) * num_states,), dtype=jnp.float64)
    potentials = jnp.zeros((num_turns + 1, num_states))
    potentials = potentials.at[1:-1].set(inner.reshape(num_turns - 1, num_states))
    gained = jnp.einsum("hsat,ht->hsa", mixed, potentials[1:]) - potentials[:-1, :, None]
    rewards = fixed.rewards + breakage.rewards * gained
    seen = (1.0 - breakage.observation) * jnp.eye(num_states) + breakage.observation / num_states
    pairs = num_states**2
    both = (mixed[..., None] * seen[None, None, None]).reshape(*shape, pairs)
    mdp = TurnMDP(
        jnp.repeat(both, num_states, axis=1),
        jnp.repeat(rewards, num_states, axis=1),
        (fixed.start[:, None] * seen).reshape(pairs),
    )
    contexts = jnp.broadcast_to(jnp.arange(pairs)[None, :] % num_states, (num_turns, pairs))
    return Instance(mdp, uniform_policy(mdp), contexts)


def wrong_values(
    key: jax.Array, mdp: TurnMDP, policy: jax.Array, bias: jax.Array, breakage: Breakage
) -> jax.Array:
    """Values [H+1, S] of a critic that errs: exact + value_bias * bias + value_noise * N(0, 1).

    Args:
      key: of this iteration's noise.
      mdp: the MDP.
      policy: [H, S, A].
      bias: [H, S] the direction of the lasting error; after the last turn values are 0 and known.
      breakage: gives both sizes.
    """
    exact = values(mdp, policy).V
    noise = jax.random.normal(key, (bias.size,), dtype=jnp.float64).reshape(bias.shape)
    error = breakage.value_bias * bias + breakage.value_noise * noise
    return exact.at[:-1].add(error)


def misplaced_siblings(
    mdp: TurnMDP,
    policy: jax.Array,
    order: jax.Array,
    clip_low: float,
    clip_high: float,
    contexts: jax.Array,
    forks: float,
) -> jax.Array:
    """`tabular.siblings` where a restored boundary is sometimes another one of the same turn.

    The policy acts on the context of the trunk, the environment may stand elsewhere:

        Q~_h(s, a) = (1 - forks) Q_h(s, a) + forks sum_s' d_h(s') Q_h(s', a) / sum_s' d_h(s')

    With forks = 0 this is RTPO; with forks = 1 it can learn nothing about a state that it would not
    learn about the average one.

    Args:
      mdp: the MDP.
      policy: [H, S, A] policy at the start of the iteration; trunks are its episodes.
      order: [H] int, the turns in the order of their updates.
      clip_low: as in `core.clipped_surrogate`.
      clip_high: as in `core.clipped_surrogate`.
      contexts: [H, S] what the policy sees.
      forks: the probability.

    Returns:
      [H, S, A] the new policy.
    """
    policy = check_policy(mdp, policy)
    trunks = occupancy(mdp, policy)
    reached = trunks.sum(1, keepdims=True)
    shares = trunks / jnp.where(reached > 0, reached, 1.0)

    def step(current, turn):
        own = values(mdp, current).Q
        anywhere = (shares[:, :, None] * own).sum(1, keepdims=True)
        mixed = (1.0 - forks) * own + forks * anywhere
        advantage = mixed - (policy * mixed).sum(-1, keepdims=True)
        found = merge_contexts(mean_credit(mdp, policy, advantage), contexts)
        improved = maximise_surrogate(policy, found, clip_low, clip_high)
        here = (jnp.arange(policy.shape[0]) == turn)[:, None, None]
        return jnp.where(here, improved, current), None

    return jax.lax.scan(step, policy, order)[0]
