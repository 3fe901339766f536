"""Part of `experiments.normalization_tabular`: learning curves on random mixtures of tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.intervals import half_width
from rtpo_jax import core
from tabular.orders.ragged import pool_normalised

SHAPE = (2, 4, 3)
FEATURES = 4
GROUPS, MEMBERS = 8, 8
NORMALISATIONS = ("none", "batch", "group")
# How far an iteration goes: the same length in parameters for all, or the same rate for all.
STEPS = {"equal length": 0.15, "equal rate": 2.0}


def draw(key: jax.Array) -> tuple[tabular.TurnMDP, jax.Array]:
    """An MDP whose outcome is 0 or 1 and whose tasks differ, and features [H, S, A, D] to share.

    The first state is the task. A last action succeeds in some states often and in others rarely.
    """
    keys = jax.random.split(key, 4)
    mdp = tabular.random_mdp(keys[0], *SHAPE, branching=2, terminal_reward_only=True)
    ease = jax.random.uniform(keys[1], SHAPE[1:2], dtype=jnp.float64) ** 2
    luck = jax.random.uniform(keys[2], (SHAPE[1] * SHAPE[2],), dtype=jnp.float64)
    last = (luck.reshape(SHAPE[1:]) < ease[:, None]).astype(jnp.float64)
    rewards = mdp.rewards.at[-1].set(last)
    features = jax.random.normal(keys[3], (int(np.prod(SHAPE)) * FEATURES,), dtype=jnp.float64)
    return tabular.TurnMDP(mdp.transitions, rewards, mdp.start), features.reshape(*SHAPE, FEATURES)


def gradient(family, params, paths, weights, advantages) -> jax.Array:
    """Gradient at the behaviour of the surrogate of whole turns, without clip (it acts nowhere)."""
    behavior = family.policy(params)

    def surrogate(params):
        changed = tabular.along(family.policy(params) / behavior, paths, fill=1.0)
        found = core.importance_weighted(changed, advantages)
        measure = jnp.broadcast_to(weights[:, None], found.shape)
        return core.weighted_sum(found, jnp.where(paths.turn_mask, measure, 0.0))

    return jax.grad(surrogate)(params)


def exact_advantages(mdp, policy, paths, normalisation) -> jax.Array:
    """Advantages [M, H] of groups and batches without bound; which one may be traced (0, 1, 2)."""
    weights = tabular.path_probabilities(mdp, policy, paths)
    plain = tabular.group_advantages(mdp, policy, paths)
    batch = pool_normalised(paths, weights, plain, centre=False)
    group = tabular.group_advantages(mdp, policy, paths, scale=True)
    return jnp.stack([plain, batch, group])[normalisation]


def sampled_advantages(key, mdp, policy, paths, normalisation):
    """Indices [N] of sampled episodes and their advantages [N] by `core.group_relative`."""
    task_key, chain_key = jax.random.split(key)
    weights = tabular.path_probabilities(mdp, policy, paths)
    tasks = jnp.searchsorted(
        jnp.cumsum(mdp.start), jax.random.uniform(task_key, (GROUPS,), dtype=jnp.float64)
    )
    own = jnp.where(paths.states[:, 0][None, :] == tasks[:, None], weights[None, :], 0.0)
    ladder = jnp.cumsum(own, axis=1)
    draws = jax.random.uniform(chain_key, (GROUPS, MEMBERS), dtype=jnp.float64) * ladder[:, -1:]
    chosen = jax.vmap(jnp.searchsorted)(ladder, draws).ravel()
    returns = tabular.path_rewards(mdp, paths).sum(-1)[chosen]
    ids = np.repeat(np.arange(GROUPS), MEMBERS)
    found = [core.group_relative(returns, ids, GROUPS, scale=scale, epsilon=1e-6)
             for scale in (None, "batch", "group")]  # fmt: skip
    return chosen, jnp.stack(found)[normalisation]


@functools.partial(jax.jit, static_argnames=("num_iterations", "sampled"))
def _learn(key, normalisation, equal, num_iterations, *, sampled):
    """Performances [K+1] of one random mixture."""
    task_key, sample_key = jax.random.split(key)
    mdp, features = draw(task_key)
    family = tabular.linear(features)
    paths = tabular.all_paths(*SHAPE, early_end=False)

    def step(params, key):
        policy = family.policy(params)
        if sampled:
            chosen, found = sampled_advantages(key, mdp, policy, paths, normalisation)
            used = tabular.Paths(*(jnp.asarray(part)[chosen] for part in paths))
            measure = jnp.full(chosen.shape, 1.0 / chosen.size)
            found = jnp.broadcast_to(found[:, None], used.states.shape)
        else:
            used, measure = paths, tabular.path_probabilities(mdp, policy, paths)
            found = exact_advantages(mdp, policy, paths, normalisation)
        slope = gradient(family, params, used, measure, found)
        length = jnp.sqrt((slope**2).sum())
        unit = slope / jnp.where(length > 0, length, 1.0)
        rate, far = STEPS["equal rate"], STEPS["equal length"]
        params = params + jnp.where(equal, far * unit, rate * slope)
        return params, tabular.performance(mdp, family.policy(params))

    start = jnp.zeros(FEATURES)
    reached = jax.lax.scan(step, start, jax.random.split(sample_key, num_iterations))[1]
    return jnp.concatenate([tabular.performance(mdp, family.policy(start))[None], reached])


def learning_curves(seed: int, num_mixtures: int, num_iterations: int):
    """Performances [num_mixtures, K+1] by step, groups and normalisation; the same mixtures for all."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2), num_mixtures)
    found = {}
    for sampled, groups in (
        (False, "groups without bound"),
        (True, f"{GROUPS} groups of {MEMBERS}"),
    ):
        many = jax.vmap(
            functools.partial(_learn, num_iterations=num_iterations, sampled=sampled),
            (0, None, None),
        )
        for step in STEPS:
            for index, name in enumerate(NORMALISATIONS):
                reached = many(keys, index, step == "equal length")
                found[step, groups, name] = np.asarray(reached)
    return found


def curve_rows(found: dict) -> list[dict]:
    """One row per step, groups, normalisation and iteration."""
    rows = []
    for (step, groups, name), reached in found.items():
        error = half_width(reached)
        rows += [
            {"step": step, "groups": groups, "normalisation": name, "iteration": i,
             "performance": reached[:, i].mean(), "half_width": error[i]}
            for i in range(reached.shape[1])
        ]  # fmt: skip
    return rows


def difference_rows(found: dict) -> list[dict]:
    """Against no normalisation on the same mixture and draws: mean difference and 95 % interval."""
    rows = []
    for (step, groups, name), reached in found.items():
        if name == "none":
            continue
        end = reached[:, -1] - found[step, groups, "none"][:, -1]
        falls = np.diff(reached, axis=1) < -1e-12
        rows.append(
            {"step": step, "groups": groups, "normalisation": name,
             "end": reached[:, -1].mean(), "difference at the end": end.mean(),
             "half_width": half_width(end),
             "better": float((end > 1e-9).mean()), "worse": float((end < -1e-9).mean()),
             "iterations that lower J": float(falls.mean())}
        )  # fmt: skip
    return rows


def sign_flip() -> dict[str, float]:
    """Two tasks that share one logit x: p1 = sigmoid(x) = 1/2, p2 = sigmoid(b - 10 x), variance 0.01.

    Returns the slope in x of the sum over both tasks, without and with group scale.
    """
    low = 0.5 - np.sqrt(0.25 - 0.01)
    offset = jnp.array([[[0.0, 0.0], [np.log(low / (1.0 - low)), 0.0]]])
    direction = jnp.array([[[1.0, 0.0], [-10.0, 0.0]]])
    family = tabular.PolicyClass((), lambda x: offset + direction * x)
    rewards = np.array([[[1.0, 0.0], [1.0, 0.0]]])
    mdp = tabular.TurnMDP(np.zeros((1, 2, 2, 2)), rewards, np.array([0.5, 0.5]))
    paths = tabular.all_paths(1, 2, 2, early_end=False)
    x = jnp.zeros(())
    policy = family.policy(x)
    weights, slopes = tabular.path_probabilities(mdp, policy, paths), {}
    for name, scale in (("none", False), ("group", True)):
        found = tabular.group_advantages(mdp, policy, paths, scale=scale)
        slopes[name] = 2.0 * float(gradient(family, x, paths, weights, found))
    return slopes


@jax.jit
def _arcsine(key):
    mdp, features = draw(key)
    family, paths = tabular.linear(features), tabular.all_paths(*SHAPE, early_end=False)
    params = features[0, 0, 0]  # anywhere but at the symmetric point

    def ascended(params):
        success = tabular.values(mdp, family.policy(params)).V[0]
        spread = jnp.where((success > 0) & (success < 1), success, 0.5)
        angle = 2.0 * jnp.arcsin(jnp.sqrt(spread))
        return mdp.start @ angle

    policy = family.policy(params)
    weights = tabular.path_probabilities(mdp, policy, paths)
    found = tabular.group_advantages(mdp, policy, paths, scale=True)
    slope = gradient(family, params, paths, weights, found)
    return jnp.abs(slope - jax.grad(ascended)(params)).max()


def arcsine_error(seed: int, num_mixtures: int) -> float:
    """Largest difference between the gradient under group scale and that of sum 2 arcsin sqrt(p)."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3), num_mixtures)
    return float(jax.vmap(_arcsine)(keys).max())
