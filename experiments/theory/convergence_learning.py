"""Theorem 1 of RTPO, its own learner: turn-wise Q-learning against exact values.

The first part of `experiments.theorem_convergence`, which says what is checked.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import tabular
from experiments.theory.claims import Claim, Counterexample, Findings, at_least, at_most
from experiments.theory.convergence_rates import error_rows, rate_claim, rate_rows
from experiments.theory.convergence_steps import CONSTANT, SUMMABLE, coins, violations
from experiments.theory.intervals import half_width
from tabular.learning.q_learning import Learned, Steps, simultaneous, step_moments, turnwise
from tabular.learning.restricted import greedy_sweep

H, S, A = 3, 3, 3
FALSE_ALARM = 0.01  # of a comparison of all orders
# Name -> (step sizes, exploration power, rate of the sup error that theory predicts or None).
SCHEDULES = {
    "1/i": (Steps(), 0.0, -0.5),
    "1/i^0.75": (Steps(power=0.75), 0.0, -0.375),
    "1/i, greedy in the limit": (Steps(), 0.5, -0.25),
    "constant 0.05": (CONSTANT, 0.0, None),
    "constant 0.1": (Steps(0.1, 0.0), 0.0, None),
    "constant 0.2": (Steps(0.2, 0.0), 0.0, None),
    "constant 0.4": (Steps(0.4, 0.0), 0.0, None),
    "1/(i+1)^2": (SUMMABLE, 0.0, None),
}


class Law(NamedTuple):
    """Squared errors of tables and what theory says, by MDP and seed [B, R]: sums over entries."""

    observed: np.ndarray
    predicted: np.ndarray
    variance: np.ndarray
    remembered: np.ndarray


@partial(jax.jit, static_argnames="num_mdps")
def draw_mdps(key: jax.Array, num_mdps: int, termination: float) -> tabular.TurnMDP:
    """A stack of random MDPs, see `tabular.random_mdp`."""
    keys = jax.random.split(key, num_mdps)
    return jax.vmap(lambda k: tabular.random_mdp(k, H, S, A, termination=termination))(keys)


def take(mdps: tabular.TurnMDP, places: int | slice) -> tabular.TurnMDP:
    """One MDP of a stack, or some of them."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[places]), mdps)


def uniform_start(mdps: tabular.TurnMDP) -> tabular.TurnMDP:
    """The same MDPs from all states equally often, so that samples are not spent on one."""
    even = jnp.full(S, 1.0 / S)
    return jax.vmap(lambda mdp: tabular.TurnMDP(mdp.transitions, mdp.rewards, even))(mdps)


def recursion(mdps: tabular.TurnMDP, natural_order: Counterexample) -> Findings:
    """Exact limits: what one pass of greedy decisions reaches, by order.

    `natural_order` is an instance on which one pass in that order fails.
    """
    num_mdps = mdps.start.shape[0]
    contexts = jnp.broadcast_to(jnp.arange(S), (H, S))
    back = tabular.reverse_order(H)
    orders = {
        "reverse": back,
        "natural": back[::-1],
        f"natural, {H} passes": jnp.tile(back[::-1], H),
    }

    @jax.jit
    @jax.vmap
    def losses(mdp):
        best, found = tabular.optimal_values(mdp), {}
        for name, order in orders.items():
            policy = greedy_sweep(mdp, tabular.uniform_policy(mdp), order, contexts)
            found[name] = jnp.abs(tabular.values(mdp, policy).V - best).max()
        return found

    loss = {name: np.asarray(found) for name, found in losses(mdps).items()}
    rows = [
        {"order": name, "optimal_share": float((x <= 1e-12).mean()), "mean_loss": x.mean(),
         "largest_loss": x.max()}
        for name, x in loss.items()
    ]  # fmt: skip
    where = f"{num_mdps} random MDPs, {H} turns, every state"
    claims = [
        at_most("RTPO Thm 1(b, c): greedy in one reverse pass is optimal, V^rec = V*", where,
                num_mdps, loss["reverse"].max(), 1e-12),
        at_most("one pass in natural order is optimal", where, num_mdps, loss["natural"].max(),
                1e-3, expected=False, counterexample="natural_order"),
        at_most(f"{H} passes in natural order are optimal (derived here: policy iteration)", where,
                num_mdps, loss[f"natural, {H} passes"].max(), 1e-12),
    ]  # fmt: skip
    return Findings(claims=claims, tables={"passes": rows},
                    counterexamples={"natural_order": natural_order})  # fmt: skip


def sampled(key: jax.Array, mdps: tabular.TurnMDP, num_seeds: int, num_samples: int) -> Findings:
    """Learners with all schedules: the law of their error, its rate, and what they are worth."""
    keys = jax.random.split(key, len(SCHEDULES))
    num_mdps = mdps.start.shape[0]
    claims, errors, rates, plateau, bound = [], [], [], [], None
    runs = num_mdps * num_seeds
    where = f"{num_mdps} MDPs, {num_seeds} seeds, {num_samples} episodes a turn"
    for (name, schedule), run_key in zip(SCHEDULES.items(), keys, strict=True):
        steps, exploration, rate = schedule
        learned = learn(run_key, mdps, num_seeds, num_samples, steps, exploration)
        if rate is not None:
            sup_errors = np.asarray(learned.errors)
            errors += error_rows(name, sup_errors)
            rates += rate_rows(name, rate, sup_errors)
            claims.append(rate_claim(name, rate, sup_errors, where))
        if exploration == 0.0:
            law = error_law(mdps, learned, steps, num_samples)
            claims.append(law_claim(name, law, where, runs))
            plateau.append(law_row(name, steps, law))
        if bound is None:
            bound = loss_claim(mdps, learned, where, runs)
            claims.append(bound)
    claims += violations(plateau, where, runs)
    tables = {"errors": errors, "rates": rates, "step_sizes": plateau}
    return Findings(claims=claims, tables=tables, counterexamples=coins())


def learn(key, mdps, num_seeds, num_samples, steps, exploration) -> Learned:
    """Reverse turn-wise Q-learning on every MDP with every seed; leaves [B, R, ...]."""
    keys = jax.random.split(key, (mdps.start.shape[0], num_seeds))
    orders = jnp.broadcast_to(tabular.reverse_order(H), (num_seeds, H))
    steps = Steps(*map(jnp.float64, steps))
    return _learners(keys, mdps, orders, steps, jnp.float64(exploration), num_samples)


def error_law(mdps, learned: Learned, steps: Steps, num_samples: int) -> Law:
    """Squared error of every table entry and its expectation given its number of visits."""
    moments = step_moments(steps, num_samples)
    memory, noise = (np.concatenate([[first], np.asarray(part)]) for first, part in
                     zip((1.0, 0.0), moments, strict=True))  # fmt: skip
    target, variance = _targets(mdps, learned.policy)
    visits = np.asarray(learned.visits).astype(int)
    table, target, variance = map(np.asarray, (learned.action_values, target, variance))
    axes = (2, 3, 4)
    return Law(
        ((table - target) ** 2).sum(axes),
        (memory[visits] ** 2 * target**2 + noise[visits] * variance).sum(axes),
        variance.sum(axes),
        ((target - table) * target).sum(axes) / (target**2).sum(axes),
    )


def law_claim(name: str, law: Law, where: str, runs: int) -> Claim:
    """Observed minus expected squared error, in standard errors over runs."""
    gap = (law.observed - law.predicted).ravel()
    worst = abs(gap.mean()) / (gap.std(ddof=1) / gap.size**0.5)
    return at_most(f"E error^2 = memory^2 start^2 + noise Var(Y), alpha = {name} (derived here)",
                   f"{where}; standard errors", runs, worst, 5.0)  # fmt: skip


def law_row(name: str, steps: Steps, law: Law) -> dict:
    """One line of the table of step sizes."""
    return {
        "schedule": name,
        "constant": steps.scale if steps.power == 0 else float("nan"),
        "error2_over_variance": law.observed.sum() / law.variance.sum(),
        "predicted": law.predicted.sum() / law.variance.sum(),
        "share_of_start_left": law.remembered.mean(),
        "standard_error": law.remembered.std(ddof=1) / law.remembered.size**0.5,
    }


def loss_claim(mdps, learned: Learned, where: str, runs: int) -> Claim:
    """What the greedy policy loses, against the errors of its tables."""
    loss = performance_loss(mdps, learned.policy)
    bound = 2 * np.asarray(learned.errors[..., -1]).sum(-1)
    return at_most("J* - J of the greedy policy over 2 sum_h sup |Q_h - Q~_h| (derived here)",
                   f"{where}; alpha = 1/i", runs, (loss / bound).max(), 1.0)  # fmt: skip


def performance_loss(mdps, policies: jax.Array) -> np.ndarray:
    """J* - J of policies [B, R, H, S, A], [B, R]."""
    return np.asarray(_losses(mdps, policies))


def orders(key: jax.Array, mdps: tabular.TurnMDP, num_seeds: int, num_samples: int) -> Findings:
    """Reverse, natural, random and simultaneous Q-learning with equally many episodes."""
    num_mdps = mdps.start.shape[0]
    run_keys = jax.random.split(key, (num_mdps, num_seeds))
    back = jnp.broadcast_to(tabular.reverse_order(H), (num_seeds, H))
    # Shuffled by numpy: the generator of permutations takes a second to compile.
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    shuffled = jnp.asarray(rng.permuted(np.tile(np.arange(H), (num_seeds, H, 1)), axis=-1))
    many = {"natural": jnp.tile(back[:, ::-1], (1, H)), "random": shuffled.reshape(num_seeds, -1)}
    steps, free = Steps(*map(jnp.float64, Steps())), jnp.float64(0.0)
    found = {}
    for name, order in {
        "reverse": back,
        "natural": back[:, ::-1],
        "random": shuffled[:, 0],
    }.items():
        found[name, 1] = _learners(run_keys, mdps, order, steps, free, num_samples).policy
    for name, order in many.items():
        learned = _learners(run_keys, mdps, order, steps, free, num_samples // H)
        found[name, H] = learned.policy
    together = _simultaneous(run_keys, mdps, steps, jnp.float64(0.5), H * num_samples)
    found["simultaneous", 1] = together.policy
    losses = {key: performance_loss(mdps, policies).mean(0) for key, policies in found.items()}
    rows = [
        {"order": name, "passes": passes, "episodes": H * num_samples, "mean_loss": loss.mean(),
         "half_width": half_width(loss)}
        for (name, passes), loss in losses.items()
    ]  # fmt: skip
    more = [loss - losses["reverse", 1] for (name, _), loss in losses.items() if name != "reverse"]
    claim = order_claim(np.array(more), f"{num_mdps} MDPs, {H * num_samples} episodes")
    return Findings(claims=[claim], tables={"learning_orders": rows})


def order_claim(more: np.ndarray, where: str) -> Claim:
    """Mean losses minus those of reverse order, [orders, R] over seeds: none is below 0.

    A t test of every difference, one-sided, at the level `FALSE_ALARM` for all of them together
    (Bonferroni): losses share seeds, so that differences are paired and have R - 1 degrees of freedom.
    """
    count, num_seeds = more.shape
    worst = (more.mean(1) / (more.std(1, ddof=1) / num_seeds**0.5)).min()
    bound = stats.t.ppf(FALSE_ALARM / count, num_seeds - 1)
    return at_least(
        "RTPO, Algorithm 1: no other order loses less than reverse order at equally many episodes",
        f"{where}, {num_seeds} seeds; least difference of mean losses in standard errors; bound t with "
        f"{num_seeds - 1} degrees of freedom at {FALSE_ALARM} / {count} orders",
        count * num_seeds, worst, bound,
    )  # fmt: skip


@jax.jit
def _targets(mdps, policies):
    """Q~ and Var(Y) [B, R, H, S, A] of outcomes 0 or 1 under the frozen policies."""

    def one(mdp, policy):
        moments = tabular.return_moments(mdp, policy, mdp.rewards * (1.0 - mdp.rewards))
        return moments.first, moments.variance

    return jax.vmap(jax.vmap(one, (None, 0)))(mdps, policies)


@jax.jit
def _losses(mdps, policies):
    def one(mdp, policy):
        return mdp.start @ tabular.optimal_values(mdp)[0] - tabular.performance(mdp, policy)

    return jax.vmap(jax.vmap(one, (None, 0)))(mdps, policies)


def _learners(keys, mdps, orders_, steps, exploration, num_samples):
    """Learners over MDPs and seeds: keys [B, R], orders [R, L]."""
    contexts = jnp.broadcast_to(jnp.arange(S), (H, S))

    def one(key, mdp, order):
        trunk = tabular.uniform_policy(mdp)
        return turnwise(
            key, mdp, trunk, order, contexts, steps, exploration, num_samples=num_samples
        )

    return jax.vmap(jax.vmap(one, (0, None, 0)), (0, 0, None))(keys, mdps, orders_)


def _simultaneous(keys, mdps, steps, exploration, num_episodes):
    def one(key, mdp):
        return simultaneous(key, mdp, steps, exploration, num_episodes=num_episodes)

    return jax.vmap(jax.vmap(one, (0, None)))(keys, mdps)
