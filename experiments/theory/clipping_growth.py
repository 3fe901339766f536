"""How the clipping bias grows with the age of a batch and the horizon; parts of `clipping_bias`."""

import dataclasses
import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Claim, Counterexample, at_least, at_most, mdp_arrays
from experiments.theory.drift_continuations import random_mdps
from rtpo_jax import core
from tabular.policy_classes import PolicyClass, token_tree
from tabular.ratios.clipping import (
    clipped_objective,
    clipping_bias_objective,
    pull_back,
    unit_ratios,
)
from tabular.ratios.token_rows import TokenRows, prefix_advantages, prefix_values, turn_rows

LEVELS = ("token", "turn_mean", "turn_product")
WAYS = ("reused", "refreshed")
PAYS = ("outcome", "every turn")
TOKENS, LENGTH, STATES = 2, 3, 3


def shared_tree(num_turns: int, num_states: int, length: int) -> PolicyClass:
    """A token tree whose parameters all turns share, as those of a language model do."""
    tree = token_tree(num_turns, num_states, TOKENS, length)
    shape = tree.shape[1:]
    return dataclasses.replace(
        tree, shape=shape, logits=lambda params: jnp.broadcast_to(params, (num_turns, *shape))
    )


class World(NamedTuple):
    """A random MDP with parameters of the shared tree; a pytree, also stacked."""

    mdp: tabular.TurnMDP
    params: jax.Array


def worlds(rng: np.random.Generator, count: int, num_turns: int, length: int) -> World:
    """A stack of random MDPs that pay at every turn, and standard normal parameters."""
    sizes = (num_turns, STATES, TOKENS**length)
    shape = shared_tree(num_turns, STATES, length).shape
    return World(random_mdps(rng, count, sizes, 0.0), jnp.asarray(rng.normal(size=(count, *shape))))


def shortened(mdp: tabular.TurnMDP, horizon: jax.Array, every_turn: jax.Array) -> tabular.TurnMDP:
    """The MDP ended after `horizon` turns; H stays, and so does the compiled program.

    Pays at every turn, or else only after the last one.
    """
    turns = jnp.arange(mdp.num_turns)[:, None, None]
    paid = jnp.where(every_turn, turns < horizon, turns == horizon - 1)
    transitions = jnp.where((turns == horizon - 1)[..., None], 0.0, mdp.transitions)
    return tabular.TurnMDP(transitions, jnp.where(paid, mdp.rewards, 0.0), mdp.start)


def on_policy_rows(mdp: tabular.TurnMDP, token_log_probs: jax.Array) -> TokenRows:
    """The exact batch of a policy with its own true token advantages; the measure sums to 1."""
    action_values = tabular.values(mdp, jnp.exp(token_log_probs.sum(-1))).Q
    found = prefix_advantages(prefix_values(action_values, token_log_probs))
    return turn_rows(mdp, token_log_probs, found)


def token_slopes(
    log_probs: jax.Array, rows: TokenRows, level: str, clip: float
) -> tuple[jax.Array, jax.Array]:
    """Gradient and clipping bias with respect to the tokens' log-probabilities, for turn rows."""
    objectives = (clipped_objective, clipping_bias_objective)
    return tuple(jax.grad(objective)(log_probs, rows, 1, level, clip) for objective in objectives)


class Case(NamedTuple):
    """What is varied at one ratio level, all arrays [cases]: int, and two bool."""

    horizon: jax.Array
    every_turn: jax.Array
    refreshed: jax.Array


@partial(jax.jit, static_argnums=(1, 2))
def ageing(
    stack: World, level: str, num_updates: int, cases: Case, clip: float, rate: float
) -> dict[str, jax.Array]:
    """A batch that gets older: norms of C and of the gradient on it after 0, 1, .. updates.

    "reused": every update ascends the old batch itself (epochs). "refreshed": every update is an
    on-policy step with exact values, as when a learner is ahead of the sampler, and the old batch is
    only looked at. Steps have length `rate`, so that age is distance travelled, too.

    Returns:
      "bias_norm", "gradient_norm", "clipped_share", "performance" and "share_of_bound", |C| over
      max |A-hat| times the largest score norm (see `clipping_bias`): [M, cases, updates + 1].
    """
    num_turns = stack.mdp.num_turns
    family = shared_tree(num_turns, STATES, LENGTH)

    def measure(world, case):
        mdp = shortened(world.mdp, case.horizon, case.every_turn)
        old = on_policy_rows(mdp, family.token_log_probs(world.params))
        # |grad log w_t| is at most sqrt(2), and sqrt(2 L) for a sum over L tokens of other nodes.
        largest = math.sqrt(2.0 * (LENGTH if level == "turn_product" else 1))
        bound = abs(old.advantages).max() * largest

        def log_probs_of(params):
            return family.token_log_probs(params).reshape(-1, LENGTH)

        def update(params, _):
            log_probs = log_probs_of(params)
            fresh = on_policy_rows(mdp, family.token_log_probs(params))
            clipped = core.is_clipped(
                unit_ratios(log_probs, old, 1, level), old.advantages, clip, clip
            )
            slopes = [*token_slopes(log_probs, old, level, clip), fresh.weights * fresh.advantages]
            pull = partial(pull_back, log_probs_of, params)
            gradient, bias, ahead = jax.vmap(pull)(jnp.stack(slopes))
            step = jnp.where(case.refreshed, ahead, gradient)
            norm = jnp.linalg.norm(step)
            found = {
                "bias_norm": jnp.linalg.norm(bias),
                "gradient_norm": jnp.linalg.norm(gradient),
                "clipped_share": jnp.where(clipped, old.weights, 0.0).sum(),
                "share_of_bound": jnp.linalg.norm(bias) / bound,
                "performance": tabular.performance(mdp, jnp.exp(family.log_probs(params))),
            }
            return params + rate * step / jnp.where(norm > 0, norm, 1.0), found

        return jax.lax.scan(update, world.params, None, length=num_updates + 1)[1]

    by_case = jax.vmap(measure, in_axes=(None, 0))
    return jax.vmap(by_case, in_axes=(0, None))(stack, cases)


class Fit(NamedTuple):
    """Three ways to describe norms against age, and what they say about exponential growth.

    Attributes:
      rate: slope of log norm on age, per update.
      exponential: R^2 of that regression.
      power: R^2 of log norm on log age.
      linear: R^2 of norm on age.
      late_over_early: slope of log norm on age over the later half of ages, divided by that over the
        earlier half; 1 for an exponential, near 0 where growth stops.
    """

    rate: float
    exponential: float
    power: float
    linear: float
    late_over_early: float


def fit(norms: np.ndarray) -> Fit:
    """Fit norms at ages 1, 2, ..; those before the first positive one are left out.

    Raises:
      ValueError: fewer than 6 positive norms.
    """
    ages = np.arange(1, norms.size + 1)
    kept = np.cumsum(norms > 0) > 0
    ages, norms = ages[kept], norms[kept]
    if norms.size < 6 or (norms <= 0).any():
        raise ValueError(f"norms has {norms.size} usable values: give more updates or larger steps")
    logs, half = np.log(norms), norms.size // 2
    early, late = (np.polyfit(ages[part], logs[part], 1)[0]
                   for part in (slice(None, half), slice(half, None)))  # fmt: skip
    return Fit(
        float(np.polyfit(ages, logs, 1)[0]),
        *(_r_squared(x, y) for x, y in ((ages, logs), (np.log(ages), logs), (ages, norms))),
        float(late / early),
    )


def _r_squared(x, y):
    slope, intercept = np.polyfit(x, y, 1)
    return 1.0 - float((y - slope * x - intercept).var() / y.var())


def measure(
    rng: np.random.Generator,
    count: int,
    horizons: tuple[int, ...],
    num_updates: int,
    clip: float,
    rate: float,
) -> tuple[list[Claim], list[dict[str, Any]], list[dict[str, Any]], dict[str, Counterexample]]:
    """All levels: claims, rows by age, rows of fits, and the MDP that is farthest from exponential."""
    stack = worlds(rng, count, max(horizons), LENGTH)
    named = list(itertools.product(horizons, PAYS, WAYS))
    cases = Case(*(jnp.array(column) for column in zip(
        *((h, pays == PAYS[1], way == WAYS[1]) for h, pays, way in named), strict=True)))  # fmt: skip
    rows, fits = [], []
    for level in LEVELS:
        found = ageing(stack, level, num_updates, cases, clip, rate)
        means = {name: np.asarray(values).mean(0) for name, values in found.items()}
        for i, (horizon, pays, way) in enumerate(named):
            case = {"level": level, "horizon": horizon, "pays": pays, "way": way}
            rows += [
                case | {"age": age} | {n: float(v[i, age]) for n, v in means.items()}
                for age in range(num_updates + 1)
            ]
            fits.append(case | fit(means["bias_norm"][i, 1:])._asdict())
        if level == "token":
            norms = np.asarray(found["bias_norm"])[:, -1]
    index = int((norms[:, -1] / norms[:, num_updates // 2]).argmin())
    first = jax.tree.map(lambda leaf: leaf[index], stack)
    settings = {"kind": "ageing", "level": "token", "horizon": max(horizons),
                "num_updates": num_updates, "clip": clip, "rate": rate}  # fmt: skip
    saved = Counterexample(
        statement="Norm of the clipping bias of a batch while the policy walks away from it with "
        "on-policy steps: it rises when clipping starts and then levels off.",
        arrays={**mdp_arrays(first.mdp), "params": first.params},
        settings=settings,
        numbers=_levelling(norms[index]),
    )
    return _claims(fits, rows, count), rows, fits, {"bias_levels_off": saved}


def replay_ageing(saved: Counterexample) -> dict[str, float]:
    """Rate and late over early slope of log |C| of one MDP, and |C| after half and all updates."""
    settings = saved.settings
    world = World(saved.mdp, jnp.asarray(saved.arrays["params"]))
    cases = Case(*(jnp.array([value]) for value in (settings["horizon"], True, True)))
    found = ageing(
        jax.tree.map(lambda leaf: leaf[None], world), settings["level"], settings["num_updates"],
        cases, settings["clip"], settings["rate"],
    )  # fmt: skip
    return _levelling(np.asarray(found["bias_norm"])[0, 0])


def _levelling(norms):
    fitted = fit(norms[1:])
    return {"rate": fitted.rate, "late over early": fitted.late_over_early,
            "half way": float(norms[norms.size // 2]), "end": float(norms[-1])}  # fmt: skip


def _claims(fits, rows, count):
    where = f"{count} random MDPs, 3 levels, means in {len(fits)} cases"
    start = max(row["bias_norm"] for row in rows if row["age"] == 0)
    last = max(row["age"] for row in rows)
    ends = {(r["level"], r["pays"], r["way"], r["horizon"]): r["bias_norm"]
            for r in rows if r["age"] == last}  # fmt: skip
    long, short = (bound({case[-1] for case in ends}) for bound in (max, min))
    growth = {case[:3]: ends[(*case[:3], long)] / ends[(*case[:3], short)] for case in ends}
    share = max(row["share_of_bound"] for row in rows)
    ratios = [f["late_over_early"] for f in fits]
    return [
        at_most("|C| <= sqrt(2) max |A-hat| at any age in expectation, sqrt(2 T_k) for products "
                "(derived here): |C| over the bound", where, len(rows), share, 1.0),
        at_most("C = 0 on a batch of the current policy (SORL, Lemma 4.2)", where, count, start, 0.0),
        at_least("|C| grows exponentially with the age of the batch (SORL, figures): slope of log |C| "
                 "over the later half of ages divided by the earlier half's, least case", where,
                 len(fits), min(ratios), 0.5, expected=False, counterexample="bias_levels_off"),
        at_least("|C| grows exponentially with the age of the batch (SORL, figures): the same ratio, "
                 "median of the cases", where, len(fits), np.median(ratios), 0.5, expected=False,
                 counterexample="bias_levels_off"),
        at_most(f"|C| at horizon {long} over |C| at horizon {short}, measure 1 / |y| (SORL, figures)",
                where, len(growth), max(growth.values()), 2.0),
    ]  # fmt: skip
