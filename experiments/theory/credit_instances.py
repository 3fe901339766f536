"""MDPs for `experiments.theorem_credit`: random ones in stacks, and locks with luck in their return."""

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from tabular import TurnMDP
from tabular.estimation.groups import ReturnLaws, return_laws


def random_stack(
    seed: int,
    number: int,
    shape: tuple[int, int, int],
    *,
    termination: float = 0.0,
    branching: int | None = None,
    outcome_only: bool = False,
    reward_levels: int | None = None,
) -> tuple[TurnMDP, jax.Array]:
    """A stack of random MDPs and policies, as `tabular.random_mdp` and `tabular.random_policy`.

    Drawn with numpy, where a new shape costs no compilation.

    Args:
      seed: of all of them.
      number: N, how many.
      shape: (H, S, A).
      termination: largest probability that the episode ends after an action.
      branching: how many next states an action can lead to, None for all.
      outcome_only: rewards at the last turn only.
      reward_levels: round rewards to multiples of 1 / (reward_levels - 1), so that returns take few
        values and large groups can be enumerated; None leaves them as drawn.

    Returns:
      the MDPs and policies [N, H, S, A], both to be mapped over.
    """
    rng = np.random.default_rng(seed)
    cells, num_states = (number, *shape), shape[1]
    kept = num_states if branching is None else branching
    rows = rng.exponential(size=(*cells, num_states))
    rows *= rng.permuted(np.arange(num_states) < kept * np.ones((*cells, 1)), axis=-1)
    rows *= (1.0 - termination * rng.random(cells))[..., None] / rows.sum(-1, keepdims=True)
    rewards = rng.random(cells)
    if reward_levels is not None:
        rewards = np.round(rewards * (reward_levels - 1)) / (reward_levels - 1)
    if outcome_only:
        rewards[:, :-1] = 0.0
    mdps = jax.vmap(TurnMDP)(rows, rewards, rng.dirichlet(np.ones(num_states), number))
    return mdps, jnp.asarray(rng.dirichlet(np.ones(shape[2]), cells[:3]))


def one_of(stack: TurnMDP, index: int) -> TurnMDP:
    """One MDP of a stack."""
    return TurnMDP(*(np.asarray(leaf)[index] for leaf in jax.tree.leaves(stack)))


def stacked_laws(
    mdps: TurnMDP, policies: jax.Array, values: np.ndarray, *, to_go: bool
) -> ReturnLaws:
    """`return_laws` of every MDP of a stack on common values; the laws get a leading axis."""
    laws = [
        return_laws(one_of(mdps, i), np.asarray(policies[i]), to_go=to_go, values=values)
        for i in range(len(policies))
    ]
    stacked = ReturnLaws(*(np.stack(parts) for parts in zip(*laws, strict=True)))
    return stacked._replace(values=values)


def lucky_lock(
    num_turns: int, success: float, luck: float, luck_turn: int, horizon: int | None = None
) -> tuple[TurnMDP, jax.Array]:
    """A combination lock whose return contains luck that no action changes and no policy sees.

    When turn `luck_turn` has ended a fair coin is thrown; the last reward is 1 if every action was
    right, plus or minus `luck`. States: 0 alive and 1 dead with good luck, or before the coin is
    thrown; 2 and 3 the same with bad luck. Action 0 is right.

    Args:
      num_turns: K, more than `luck_turn` + 1.
      success: probability of opening the lock; every turn is right with its K-th root.
      luck: size of the luck, in units of reward.
      luck_turn: the turn after which it is drawn.
      horizon: turns of the arrays, None for num_turns; the later ones are never reached, and locks
        of different lengths can be stacked.

    Returns:
      MDP and policy.
    """
    horizon = num_turns if horizon is None else horizon
    transitions = np.zeros((horizon, 4, 2, 4))
    for luck_offset in (0, 2):
        transitions[:, luck_offset, 0, luck_offset] = 1.0
        transitions[:, luck_offset, 1, luck_offset + 1] = 1.0
        transitions[:, luck_offset + 1, :, luck_offset + 1] = 1.0
    coin = 0.5 * np.concatenate([transitions[luck_turn, :2, :, :2]] * 2, axis=-1)
    transitions[luck_turn] = np.concatenate([coin, coin])
    transitions[num_turns - 1 :] = 0.0
    rewards = np.zeros((horizon, 4, 2))
    rewards[num_turns - 1, :2] += luck
    rewards[num_turns - 1, 2:] -= luck
    rewards[num_turns - 1, [0, 2], 0] += 1.0
    mdp = TurnMDP(transitions, rewards, np.array([1.0, 0.0, 0.0, 0.0]))
    return mdp, tabular.lock_policy(mdp, success ** (1.0 / num_turns))
