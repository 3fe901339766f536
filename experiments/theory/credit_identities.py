"""RTPO's Theorem 2 (a), (c) by enumeration of groups on random MDPs: claims for `theorem_credit`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, at_most
from experiments.theory.credit_instances import random_stack, stacked_laws
from rtpo_jax import core
from tabular.estimation import estimators
from tabular.estimation.groups import group_statistics, path_estimate, path_generalised_advantages
from tabular.estimation.sibling_objective import sibling_groups, sibling_objective
from tabular.paths import all_paths

SIZES = (3, 4, 5, 6)  # group sizes G of the identities
LEVELS = 3  # rewards 0, 1/2, 1 of the enumerated MDPs
_SHAPE = (3, 2, 2)
_VALUES = np.arange(_SHAPE[0] * (LEVELS - 1) + 1) / (LEVELS - 1)  # all sums of them
_EXACT = 1e-12
_TRACE_DECAYS = (0.0, 0.5, 0.95, 1.0)


def enumerated(advantage, laws, others, group_size, trunk=None):
    """`group_statistics` of a stack; `others` and `trunk` are laws [N, ., ., ., Y]."""
    return group_statistics(advantage, laws.values, laws.action, others, group_size, trunk=trunk)


def _closed_forms(mdp, policy, old_policy, size):
    """What the enumerations of `identities` have to give, by name."""
    flat = partial(estimators.trajectory_group, mdp, policy, size)
    siblings = partial(estimators.sibling_group, mdp, policy, size - 1)
    return {
        "episodes": flat(),
        "episodes, left out": flat(include_self=False),
        "siblings": siblings(),
        "siblings, left out": siblings(include_self=False),
        "siblings, old trunk": siblings(trunk_policy=old_policy),
    }


def identities(seed: int, num_mdps: int) -> list[Claim]:
    """2(a): what each estimator expects, and its variance, enumeration against closed form."""
    mdps, policies = random_stack(seed, num_mdps, _SHAPE, termination=0.6, reward_levels=LEVELS)
    old = random_stack(seed + 1, num_mdps, _SHAPE)[1]
    whole = stacked_laws(mdps, policies, _VALUES, to_go=False)
    to_go = stacked_laws(mdps, policies, _VALUES, to_go=True)
    # Both policies can do everything, so their returns take the same values.
    trunk = stacked_laws(mdps, old, _VALUES, to_go=True).state[:, :, :, None]
    episode, fork = whole.episode[:, :, None, None], to_go.state[:, :, :, None]
    truth = np.asarray(jax.vmap(tabular.advantages)(mdps, policies))
    worst: dict[str, float] = {}

    def record(name, gap):
        worst[name] = max(worst.get(name, 0.0), float(np.max(np.abs(gap))))

    for size in SIZES:
        found = {
            "episodes": enumerated(core.group_relative, whole, episode, size),
            "siblings": enumerated(core.sibling_relative, to_go, fork, size - 1),
        }
        record("Eq. 64", found["siblings"].mean - (size - 2) / (size - 1) * truth)
        record("no upstream", found["episodes"].mean - (size - 1) / size * truth)
        if size == SIZES[0]:
            found["episodes, left out"] = enumerated(core.leave_one_out, whole, episode, size)
            found["siblings, left out"] = enumerated(core.leave_one_out, to_go, fork, size - 1)
            found["siblings, old trunk"] = enumerated(core.group_relative, to_go, fork, size, trunk)
        closed = jax.vmap(partial(_closed_forms, size=size))(mdps, policies, old)
        for name, statistics in found.items():
            record(name, statistics.mean - closed[name].mean)
            record(name, statistics.variance - closed[name].variance)
    where = f"{num_mdps} MDPs {_SHAPE}, early ends, rewards at every turn; all groups"
    return _claims_of_expectations(worst, where, num_mdps * truth[0].size)


def _claims_of_expectations(worst, where, cells):
    def exact(claim, name, sizes=SIZES):
        named = f"{where}, G = " + ", ".join(map(str, sizes))
        return at_most(claim, named, cells * len(sizes), worst[name], _EXACT)

    small = SIZES[:1]
    return [
        exact("RTPO Thm 2(a), Eq. 64: E[A^H | S,u] = (G-2)/(G-1) A(S,u)", "Eq. 64"),
        exact("RTPO Thm 2(a), Eq. 69: E[A^traj | S,u] = (G-1)/G (A + V(S) - mu), paid rewards in V; "
              "and its variance", "episodes"),
        at_most("RTPO Thm 2(a), Eq. 69 without its upstream term V(S) - mu", where, cells * len(SIZES),
                worst["no upstream"], 1e-3, expected=False, counterexample="upstream"),
        exact("variance of A^H = ((n-1)/n)^2 (Var(R|S,u) + Var(R|S)/(n-1)), n = G-1 (derived here)",
              "siblings"),
        exact("leave-one-out episodes: mean A + V(S) - mu, no factor; and variance (derived here)",
              "episodes, left out", small),
        exact("leave-one-out siblings: mean A, unbiased; and variance (derived here)",
              "siblings, left out", small),
        exact("an older trunk in the sibling group adds (V(S) - V_old(S)) / G; and variance (derived "
              "here)",
              "siblings, old trunk", small),
    ]  # fmt: skip


def differences(seed: int, num_mdps: int) -> list[Claim]:
    """Eq. 78: two siblings differ by the difference of their action values."""
    mdps, policies = random_stack(seed, num_mdps, _SHAPE, termination=0.6, reward_levels=LEVELS)
    laws = stacked_laws(mdps, policies, _VALUES, to_go=True)
    action_values = np.asarray(jax.vmap(tabular.values)(mdps, policies).Q)
    worst = 0.0
    for other in range(_SHAPE[2]):
        rival = laws.action[:, :, :, [other]]
        found = enumerated(core.leave_one_out, laws, rival, 2)
        expected = action_values - action_values[..., [other]]
        worst = max(worst, float(abs(np.asarray(found.mean) - expected).max()))
    where = f"{num_mdps} MDPs {_SHAPE}, all pairs of actions"
    claim = "RTPO Thm 2(c), Eq. 78: E[R_j - R_j' | u_j, u_j'] = Q(S,u_j) - Q(S,u_j')"
    return [at_most(claim, where, action_values.size * _SHAPE[2], worst, _EXACT)]


def critics(seed: int, num_mdps: int) -> list[Claim]:
    """GAE with exact, wrong and noisy values: `core.gae` on all paths against the closed form."""
    mdps, policies = random_stack(seed, num_mdps, _SHAPE, termination=0.6)
    paths = all_paths(*_SHAPE, early_end=True)
    keys = jax.random.split(jax.random.key(seed), num_mdps)

    decays = jnp.array(_TRACE_DECAYS)

    def gaps(mdp, policy, key, decay):
        exact, truth = tabular.values(mdp, policy).V, tabular.advantages(mdp, policy)
        found = []
        for table in (exact, exact + jax.random.normal(key, exact.shape)):
            on_paths = path_generalised_advantages(mdp, paths, table, decay)
            a = path_estimate(mdp, policy, paths, on_paths)
            b = estimators.generalised_advantage(mdp, policy, table, decay)
            found.append(jnp.abs(jnp.stack(a) - jnp.stack(b)).max())
        unbiased = estimators.generalised_advantage(mdp, policy, exact, decay).mean
        return jnp.stack([*found, jnp.abs(unbiased - truth).max()])

    over_decays = jax.vmap(gaps, in_axes=(None, None, None, 0))
    found = np.asarray(
        jax.jit(jax.vmap(over_decays, (0, 0, 0, None)))(mdps, policies, keys, decays)
    )
    where = f"{num_mdps} MDPs {_SHAPE}, early ends, lambda in {_TRACE_DECAYS}"
    return [
        at_most("GAE: mean and variance by recursion (derived here) = core.gae on all episodes, any V",
                where, found[..., :2].size, found[..., :2].max(), 1e-11),
        at_most("GAE (arXiv 1506.02438) with exact values is unbiased for every lambda",
                where, found[..., 2].size, found[..., 2].max(), _EXACT),
    ]  # fmt: skip


def support(seed: int, num_mdps: int, sizes: tuple[int, ...]) -> list[Claim]:
    """2(c) and the expected gradient of J_k, by automatic differentiation over all groups."""
    shape = (2, 2, 2)
    mdps, _ = random_stack(seed, num_mdps, shape, termination=0.6)
    logits = jax.random.normal(jax.random.key(seed), (num_mdps, *shape))
    paths = all_paths(*shape, early_end=True)
    outside, inside, tails = [], [], []

    @jax.jit
    def gradients(mdps, logits, first, second):
        def losses(x, mdp, behavior):
            policy = jax.nn.softmax(x)
            loss = partial(sibling_objective, policy, mdp, behavior, paths)
            return jnp.stack([loss(first, 0), loss(second, 1), loss(first, 0, tails=True)])

        def one(mdp, logits):
            behavior = jax.nn.softmax(logits)
            return jax.jacrev(losses)(logits, mdp, behavior), tabular.policy_gradient(mdp, behavior)

        return jax.vmap(one)(mdps, logits)

    for n in sizes:
        forks = [sibling_groups(paths, turn, n) for turn in range(shape[0])]
        own, truth = map(np.asarray, gradients(mdps, logits, *forks))
        truth = truth * (n - 1) / n
        outside.append(max(abs(own[:, 0, 1]).max(), abs(own[:, 1, 0]).max()))
        inside.append(max(abs(own[:, k, k] - truth[:, k]).max() for k in range(shape[0])))
        tails.append(abs(own[:, 2] - truth).max())
    count = num_mdps * len(sizes) * truth[0].size
    named = ", ".join(str(n + 1) for n in sizes)
    where = f"{num_mdps} MDPs {shape}, early ends, all groups of paths, G = {named}"
    return [
        at_most("RTPO Thm 2(c), Eq. 80: the gradient of E J_k is exactly 0 outside turn k", where,
                count, max(outside), 0.0),
        at_most("gradient of E J_k at theta_old = (G-2)/(G-1) d_k pi A in row k (derived here)", where,
                count, max(inside), _EXACT),
        at_most("siblings' later turns trained too: every later row gets that factor (derived here)",
                where, count, max(tails), _EXACT),
    ]  # fmt: skip
