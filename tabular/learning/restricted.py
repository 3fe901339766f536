"""Best policies that may not do everything: they see contexts, share rows, or lack actions.

A deterministic or stochastic policy that sees only psi(S) has one row for all states that share a
number in `contexts` [H, S], at the same turn or, if numbers are used at several turns, at all of
these. `best_deterministic` finds the best one by enumeration, `best_stochastic` searches the product
of simplices, and `greedy_sweep` is what turn-wise learning ends with.

Within one turn every episode uses one row once, so performance is linear in that row and multilinear
in all of them, and its maximum over a product of simplices is at a corner: as long as psi shows the
turn, randomising never helps (derived here). Rows used at several turns break this: the absent-minded
instance gains by it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from tabular.exact import occupancy, performance, values
from tabular.instances import Instance, uniform_policy
from tabular.mdp import TurnMDP, check_integer, check_policy, is_concrete, require_float64_mode


def number_by_turn(contexts: np.ndarray) -> np.ndarray:
    """Contexts [H, S] with numbers made different at different turns: psi shows the turn."""
    contexts = np.asarray(contexts)
    numbers = np.arange(contexts.shape[0])[:, None] * (contexts.max() + 1) + contexts
    return np.unique(numbers, return_inverse=True)[1].reshape(contexts.shape)


def pool(weights: jax.Array, action_values: jax.Array, contexts: jax.Array) -> jax.Array:
    """Action values [S, A] of contexts: the mean over their states at one turn.

        Q(c, a) = sum_{s in c} w(s) Q(s, a) / sum_{s in c} w(s),   0 where the weights are 0

    What Q-learning on psi(S) converges to when states are visited in proportion to `weights`.

    Args:
      weights: [S] non-negative, such as the occupancy of the turn.
      action_values: [S, A].
      contexts: [S] int in 0..S-1.

    Returns:
      [S, A], a row for each number; rows of unused numbers are 0.
    """
    member = jax.nn.one_hot(contexts, weights.shape[0], axis=0, dtype=weights.dtype)
    totals = (member @ weights)[:, None]
    sums = member @ (weights[:, None] * action_values)
    return jnp.where(totals > 0, sums / jnp.where(totals > 0, totals, 1.0), 0.0)


def greedy_sweep(
    mdp: TurnMDP,
    trunk: jax.Array,
    order: jax.Array,
    contexts: jax.Array,
    allowed: jax.Array | None = None,
    *,
    fresh: bool | jax.Array = True,
) -> jax.Array:
    """One greedy decision per stage: the limit of turn-wise Q-learning with exact values.

        for h in order:  pi_h(c) <- argmax_a E[Q_h^{pi}(S, a) | psi(S) = c],
        S as the trunk policy meets it, Q of the current continuations (RTPO, arXiv 2608.18682,
        Theorem 1 with order H-1, ..., 0: the recursively optimal policy)

    Continuations start as the trunk policy. A context the trunk never meets has nothing to learn
    from: its row is that of a table of zeros, action 0. Exact ties go to the lowest action too.

    Args:
      mdp: the MDP.
      trunk: [H, S, A] policy that reaches the boundaries and continues at turns not yet learned.
      order: [L] int turns in the order of their stages.
      contexts: [H, S] int in 0..S-1, what a turn's policy sees; compared within a turn only.
      allowed: [H, S, A] bool, the actions that the class of a turn contains in a context, at least
        one each and equal within a context; None for all.
      fresh: False continues with the trunk policy in all stages; may be traced.

    Returns:
      [H, S, A] deterministic for the turns in `order`. Raises ValueError on a malformed trunk.
    """
    trunk, contexts = check_policy(mdp, trunk), jnp.asarray(contexts)
    allowed = None if allowed is None else jnp.asarray(allowed)
    visited = occupancy(mdp, trunk)

    def stage(policy, turn):
        action_values = values(mdp, jnp.where(fresh, policy, trunk)).Q[turn]
        table = pool(visited[turn], action_values, contexts[turn])[contexts[turn]]
        if allowed is not None:
            table = jnp.where(allowed[turn], table, -jnp.inf)
        row = jax.nn.one_hot(table.argmax(-1), mdp.num_actions, dtype=policy.dtype)
        return policy.at[turn].set(row), None

    return jax.lax.scan(stage, trunk, order)[0]


def deterministic_rules(
    contexts: np.ndarray, num_actions: int, *, limit: int = 50_000
) -> np.ndarray:
    """All deterministic policies [M, H, S, A] with one action per number of `contexts` [H, S].

    Numbers run from 0 to C-1; the same number at two turns is the same row. Raises ValueError if
    contexts are traced or M = A^C is above `limit`.
    """
    if not is_concrete(contexts):
        raise ValueError("contexts are traced: list rules outside jit, grad and vmap")
    check_integer("num_actions", num_actions, 1)
    contexts = np.asarray(contexts)
    num_contexts = int(contexts.max()) + 1
    count = num_actions**num_contexts
    if count > limit:
        raise ValueError(
            f"limit is {limit} but there are {count} rules for {num_contexts} contexts and "
            f"{num_actions} actions: use a smaller MDP"
        )
    choices = np.indices((num_actions,) * num_contexts).reshape(num_contexts, -1).T
    return np.eye(num_actions)[choices[:, contexts]]


def best_deterministic(
    mdp: TurnMDP, contexts: np.ndarray, allowed: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The best deterministic policy with one row per context, by trying all of them.

    Args:
      mdp: the MDP; may be traced.
      contexts: [H, S] int, see `deterministic_rules`.
      allowed: [H, S, A] bool, actions that the class contains; None for all.

    Returns:
      (policy [H, S, A], performance), -inf if no rule is allowed. Raises ValueError if there are
      too many rules.
    """
    rules = jnp.asarray(deterministic_rules(contexts, mdp.num_actions))
    return _best_of(mdp, rules, jnp.ones(rules.shape[1:], bool) if allowed is None else allowed)


def best_stochastic(
    mdp: TurnMDP, contexts: np.ndarray, starts: np.ndarray, *, num_steps: int = 100
) -> tuple[np.ndarray, float]:
    """The best stochastic policy with one row per context that a search finds.

    From each start the search moves one row straight toward one action, along the segment on which
    performance is a polynomial of degree H at most, to the exact maximum of that polynomial, and
    takes the best row and action each time until nothing improves. With one context and two actions
    the segments are the whole class and the result is its maximum; with more it is a lower bound,
    as good as the starts.

    Args:
      mdp: the MDP, concrete.
      contexts: [H, S] int from 0 to C-1; the same number at two turns is the same row.
      starts: [M, C, A] rows to start from.
      num_steps: the largest number of moves from each start.

    Returns:
      (policy [H, S, A], performance). Raises ValueError if traced.
    """
    if not is_concrete(mdp.rewards):
        raise ValueError("mdp is traced: search outside jit, grad and vmap")
    contexts, rows = np.asarray(contexts), np.asarray(starts, dtype=np.float64)
    best = _performances(mdp, rows[:, contexts])
    for _ in range(num_steps):
        candidates, found = _line_maxima(mdp, rows, contexts)
        choice, each = found.argmax(-1), np.arange(len(rows))
        better = found[each, choice] > best + 1e-14
        if not better.any():
            break
        rows = np.where(better[:, None, None], candidates[each, choice], rows)
        best = np.where(better, found[each, choice], best)
    return rows[best.argmax()][contexts], float(best.max())


def absent_minded() -> Instance:
    """Two turns that look alike: go on at the first, leave at the second (Piccione and Rubinstein).

    Leaving (action 1) at turn 0 ends with 0 and at turn 1 pays 1; going on (action 0) twice pays
    1/4. A policy that cannot tell the turns apart and goes on with probability p gets

        J(p) = p (1 - p) + p^2 / 4,

    1/4 if deterministic and 1/3 at p = 2/3. One that sees the turn gets 1.

    Returns:
      `Instance` with the uniform policy; both turns share context 0.
    """
    require_float64_mode()
    transitions = np.zeros((2, 1, 2, 1))
    transitions[0, 0, 0, 0] = 1.0
    rewards = np.array([[[0.0, 0.0]], [[0.25, 1.0]]])
    mdp = TurnMDP(transitions, rewards, np.ones(1))
    return Instance(mdp, uniform_policy(mdp), jnp.zeros((2, 1), dtype=int))


@jax.jit
def _best_of(mdp, rules, allowed):
    found = jax.lax.map(lambda rule: performance(mdp, rule), rules, batch_size=256)
    forbidden = jnp.where(allowed[None], 0.0, rules).sum((1, 2, 3)) > 0
    found = jnp.where(forbidden, -jnp.inf, found)
    return rules[found.argmax()], found.max()


@jax.jit
def _performances_of(mdp, policies):
    return jax.vmap(performance, (None, 0))(mdp, policies)


def _performances(mdp, policies):
    """Performance of each policy [M, H, S, A], in chunks of one size so that one program does."""
    chunk = 512
    padded = np.concatenate([policies, np.repeat(policies[:1], -len(policies) % chunk, axis=0)])
    found = [_performances_of(mdp, padded[i : i + chunk]) for i in range(0, len(padded), chunk)]
    return np.concatenate(found)[: len(policies)]


def _line_maxima(mdp, rows, contexts):
    """Best point of each segment: rows [M, C*A, C, A] and their performance [M, C*A]."""
    num_contexts, num_actions = rows.shape[1:]
    ends = np.repeat(rows[:, None], num_contexts * num_actions, axis=1)
    for index, (context, action) in enumerate(np.ndindex(num_contexts, num_actions)):
        ends[:, index, context] = np.eye(num_actions)[action]
    degree = mdp.num_turns
    nodes = 0.5 - 0.5 * np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    between = rows[:, None, None] + nodes[:, None, None] * (ends - rows[:, None])[:, :, None]
    flat = _performances(mdp, between.reshape(-1, num_contexts, num_actions)[:, contexts])
    fits = np.linalg.solve(np.vander(nodes), flat.reshape(-1, degree + 1).T).T
    steps = np.array([_maximum_on_unit(fit) for fit in fits]).reshape(ends.shape[:2])
    moved = rows[:, None] + steps[..., None, None] * (ends - rows[:, None])
    reached = _performances(mdp, moved.reshape(-1, num_contexts, num_actions)[:, contexts])
    return moved, reached.reshape(steps.shape)


def _maximum_on_unit(coefficients):
    """Where in 0..1 a polynomial, highest power first, is largest."""
    roots = np.roots(np.polyder(coefficients))
    inside = roots.real[(np.abs(roots.imag) < 1e-9) & (roots.real > 0) & (roots.real < 1)]
    points = np.concatenate([[0.0, 1.0], inside])
    return points[np.polyval(coefficients, points).argmax()]
