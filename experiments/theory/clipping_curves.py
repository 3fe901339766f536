"""Learning with a critic that errs: readings of SORL's normalisation against plain controls."""

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tabular
from experiments.theory.claims import Claim, at_least, at_most
from experiments.theory.clipping_growth import STATES, World, shared_tree, token_slopes, worlds
from rtpo_jax import core
from tabular.ratios.clipping import pull_back
from tabular.ratios.token_rows import TokenRows, prefix_advantages, prefix_values, turn_rows

SCALES = ("guarded", "literal", "damped", "capped", "relative")
KINDS = ("none", *SCALES)
LEVELS = ("token", "turn_mean")
CONTROLS = ("smaller step", "gradient clipping")
OPTIMISERS = ("sgd", "adam")
ADAM = optax.adam(1.0)
RATES = {"sgd": (10.0, 100.0), "adam": (0.03, 0.3)}  # a moderate step and one that is too large
TURNS, LENGTH = 4, 2
CLIP = 0.2
MATCHED = 0.15  # relative distance up to which two mean step lengths count as equal
DECIDING = 12  # MDPs below which a standard error over them leaves open whether g / |C| harms
RUNS = 12  # of one call of `train`, so that every call is the same program


class Options(NamedTuple):
    """What a run does with its gradient g, arrays of one shape.

    Attributes:
      kind: index in `KINDS` of the factor on g, from the norms of g and of C.
      threshold: then g is shortened to this norm; infinite for never.
      factor: then the step of the optimiser is multiplied by this.
    """

    kind: jax.Array
    threshold: jax.Array
    factor: jax.Array


def noisy_rows(
    mdp: tabular.TurnMDP, token_log_probs: jax.Array, key: jax.Array, noise: float
) -> TokenRows:
    """The exact batch of a policy with advantages from a critic whose values err by N(0, noise^2)."""
    action_values = tabular.values(mdp, jnp.exp(token_log_probs.sum(-1))).Q
    exact = prefix_values(action_values, token_log_probs)
    sizes = [table.size for table in exact]
    errors = jnp.split(noise * jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    critic = [v + e.reshape(v.shape) for v, e in zip(exact, errors, strict=True)]
    return turn_rows(mdp, token_log_probs, prefix_advantages(critic))


@partial(jax.jit, static_argnums=(2, 4, 5))
def train(
    stack: World,
    options: Options,
    level: str,
    adam: bool,
    iterations: int,
    epochs: int,
    keys: jax.Array,
    noise: float,
) -> dict[str, jax.Array]:
    """Exact clipped policy optimisation for every run of `options` [R] on every MDP [M].

    An iteration takes the exact batch of the current policy, asks a critic with fresh errors, and makes
    `epochs` steps on it, by Adam or (`adam` false) plain gradient ascent. Runs share their keys.

    Returns:
      "performance", [R, M, iterations + 1], over that of the best policy; "bias_norm", [R, M], the
      largest |C|; "step", [R, M], mean length of a step; "clipped", [R, M], share of steps with C > 0.
    """
    family = shared_tree(TURNS, STATES, LENGTH)

    def run(world, key, option):
        best = tabular.optimal_values(world.mdp)[0] @ world.mdp.start

        def log_probs_of(params):
            return family.token_log_probs(params).reshape(-1, LENGTH)

        def step(carry, _, rows):
            params, state = carry
            log_probs, pull = log_probs_of(params), partial(pull_back, log_probs_of, params)
            slopes = jax.vmap(pull)(jnp.stack(token_slopes(log_probs, rows, level, CLIP)))
            gradient, bias_norm = modified(*slopes, option)
            updates, state = ADAM.update(-gradient, state)
            move = option.factor * jnp.where(adam, updates, gradient)
            return (params + move, state), (bias_norm, jnp.linalg.norm(move))

        def iteration(carry, key):
            params, _ = carry
            rows = noisy_rows(world.mdp, family.token_log_probs(params), key, noise)
            carry, found = jax.lax.scan(partial(step, rows=rows), carry, None, length=epochs)
            return carry, (*found, tabular.performance(world.mdp, family.policy(carry[0])) / best)

        start = tabular.performance(world.mdp, family.policy(world.params)) / best
        carry, keys = (world.params, ADAM.init(world.params)), jax.random.split(key, iterations)
        _, (norms, steps, curve) = jax.lax.scan(iteration, carry, keys)
        return {"performance": jnp.append(start, curve), "bias_norm": norms.max(),
                "step": steps.mean(), "clipped": (norms > 0).mean()}  # fmt: skip

    by_world = jax.vmap(run, in_axes=(0, 0, None))
    return jax.vmap(by_world, in_axes=(None, None, 0))(stack, keys, options)


def modified(gradient: jax.Array, bias: jax.Array, option: Options) -> tuple[jax.Array, jax.Array]:
    """The gradient after the factor and the threshold of one run's options, and the norm of C."""
    norm, bias_norm = jnp.linalg.norm(gradient), jnp.linalg.norm(bias)
    factors = [jnp.ones(())] + [
        core.clipping_triggered_scale(norm, bias_norm, kind) for kind in SCALES
    ]
    gradient = jnp.stack(factors)[option.kind] * gradient
    norm = jnp.linalg.norm(gradient)
    return gradient / jnp.maximum(1.0, norm / option.threshold), bias_norm


def matched(lengths: np.ndarray, grid: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Settings of a control whose mean step length is `wanted`: [G], [G] ascending, [R] -> [R].

    The last setting of the grid leaves the run as it is. From there downward, the first place where
    the length falls to the wanted one, interpolating logarithms; the last setting where the unchanged
    run is no longer than wanted already, and the first where none is as short.
    """
    found = []
    for length in wanted:
        below = np.flatnonzero(lengths <= length)
        i = below[-1] if below.size else 0
        if i == grid.size - 1 or not below.size:
            found.append(grid[i])
            continue
        share = np.log(length / lengths[i]) / np.log(lengths[i + 1] / lengths[i])
        found.append(grid[i] * (grid[i + 1] / grid[i]) ** share)
    return np.array(found)


def options(kinds, thresholds, factors) -> Options:
    """`RUNS` runs from numbers or arrays; shorter arrays are repeated to that length."""
    columns = (kinds, thresholds, factors)
    return Options(*(jnp.asarray(np.resize(column, RUNS)) for column in columns))


def compare(launch, case: dict[str, Any], rate: float) -> tuple[list[dict], list[dict], np.ndarray]:
    """All kinds at one step size, and for each kind the two controls of equal mean step length.

    The controls take the unscaled gradient: one multiplies every step by a constant, the other shortens
    gradients above a threshold. Their setting is interpolated from a grid of runs.

    Args:
      launch: from `Options` to the results of `train`, as numpy arrays.
      case: columns that name the level, the optimiser and the step size.
      rate: factor on the optimiser's step.

    Returns:
      rows of learning curves (mean over MDPs), and a row for every kind and control: final performance
      of both and the difference with its standard error over MDPs; final performance without
      control, [kinds and repetitions, M].
    """
    scaled = launch(options(np.arange(len(KINDS)), np.inf, rate))
    factors, bounds = np.geomspace(1e-3, 1.0, RUNS), np.geomspace(1e-5, 1e2, RUNS)
    wanted = scaled["step"].mean(1)[1 : len(KINDS)]
    smaller = launch(options(0, np.inf, rate * factors))["step"].mean(1)
    shortened = launch(options(0, bounds, rate))["step"].mean(1)
    factors, bounds = matched(smaller, factors, wanted), matched(shortened, bounds, wanted)
    count = len(SCALES)
    controls = launch(
        options(
            0,
            np.append(np.full(count, np.inf), bounds),
            rate * np.append(factors, np.ones(count)),
        )
    )
    curves = [_curve(case, kind, "", scaled, i) for i, kind in enumerate(KINDS)]
    rows = []
    for j, control in enumerate(CONTROLS):
        for i, kind in enumerate(SCALES):
            curves.append(_curve(case, kind, control, controls, count * j + i))
            rows.append(case | _difference(kind, control, scaled, i + 1, controls, count * j + i))
    return [row for curve in curves for row in curve], rows, scaled["performance"][..., -1]


def _curve(case, kind, control, found, run):
    means = found["performance"][run].mean(0)
    names = {"kind": kind, "control": control}
    return [case | names | {"iteration": i, "performance": float(v)} for i, v in enumerate(means)]


def _difference(kind, control, scaled, run, controls, other):
    ends = [found["performance"][index, :, -1]
            for found, index in ((scaled, run), (controls, other), (scaled, 0))]  # fmt: skip
    difference, unscaled = ends[0] - ends[1], ends[0] - ends[2]
    scale = np.sqrt(difference.size)
    return {
        "kind": kind,
        "control": control,
        "final": float(ends[0].mean()),
        "control_final": float(ends[1].mean()),
        "difference": float(difference.mean()),
        "error": float(difference.std(ddof=1) / scale),
        "unscaled_difference": float(unscaled.mean()),
        "unscaled_error": float(unscaled.std(ddof=1) / scale),
        "mean_step": float(scaled["step"][run].mean()),
        "control_mean_step": float(controls["step"][other].mean()),
        "largest_bias_norm": float(scaled["bias_norm"][run].max()),
        "clipped_share": float(scaled["clipped"][run].mean()),
    }


def measure(
    rng: np.random.Generator, count: int, iterations: int, epochs: int, noise: float
) -> tuple[list[Claim], list[dict[str, Any]], list[dict[str, Any]]]:
    """Both levels, both optimisers, two step sizes each: claims, curves, comparisons."""
    stack = worlds(rng, count, TURNS, LENGTH)
    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), count)
    curves, rows, harms = [], [], []
    for level, (optimiser, rates) in itertools.product(LEVELS, RATES.items()):

        def launch(runs, level=level, optimiser=optimiser):
            found = train(stack, runs, level, optimiser == "adam", iterations, epochs, keys, noise)
            found = {name: np.array(values) for name, values in found.items()}
            # Dividing by a |C| near 0 can overflow parameters: then there is no policy left.
            found["performance"][np.isnan(found["performance"])] = 0.0
            return found

        for rate in rates:
            case = {"level": level, "optimiser": optimiser, "rate": rate}
            more_curves, more_rows, ends = compare(launch, case, rate)
            curves += more_curves
            rows += more_rows
            if optimiser == "sgd":
                harms.append(ends[KINDS.index("literal")] - ends[KINDS.index("none")])
    claims = _claims(rows, count)
    if count >= DECIDING:
        claims.append(harm_claim(np.array(harms)))
    return claims, curves, rows


def harm_claim(harms: np.ndarray) -> Claim:
    """Final performance with g / |C| minus that with g under SGD, [cases, M] over MDPs.

    Cases share their MDPs: they are averaged first, and the standard error is over MDPs.
    """
    cases, count = harms.shape
    by_mdp = harms.mean(0)
    upper = by_mdp.mean() + 3 * by_mdp.std(ddof=1) / count**0.5
    return at_most(
        "SORL as g / |C| under SGD lowers final performance against the unscaled run, mean of cases, 3 "
        "standard errors above; runs whose parameters overflow count as performance 0",
        f"{cases} cases on the same {count} random MDPs; standard error over MDPs, {count - 1} degrees "
        "of freedom", cases * count, upper, 0.0,
    )  # fmt: skip


def _pairs(rows):
    """Rows of the two controls of each case; those of another mean step length are left out."""
    cases: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        if abs(row["control_mean_step"] / row["mean_step"] - 1.0) < MATCHED:
            key = row["level"], row["optimiser"], row["rate"]
            cases.setdefault(key, []).append(row)
    return list(cases.values())


def _claims(rows, count):
    where = f"{count} random MDPs, 2 levels, 2 optimisers, 2 step sizes"
    kind = {scale: [row for row in rows if row["kind"] == scale] for scale in SCALES}
    # A row against the better of the two controls, where their steps are as long as promised.
    gains = [min(pair, key=lambda r: r["difference"]) for pair in _pairs(kind["relative"])]
    gains = [(r["difference"] - 5 * r["error"], r["difference"] + 5 * r["error"]) for r in gains]
    same = max(abs(row["unscaled_difference"]) for row in kind["guarded"])
    cases = len(rows) // (len(SCALES) * len(CONTROLS))
    return [
        at_most("SORL, Lemma 4.2: largest |C| of any run, measure 1 / |y|", where, len(rows),
                max(row["largest_bias_norm"] for row in rows), 1.0),
        at_most("so SORL as g / max(1, |C|) changes nothing: final performance minus the unscaled",
                where, cases, same, 0.0),
        at_most("SORL as g |g| / (|g| + |C|) over the better control of equal mean step: gain of "
                "final performance, best of the cases, 5 standard errors below", where,
                len(gains), max(low for low, _ in gains), 0.01),
        at_least("SORL as g |g| / (|g| + |C|), worst of the cases, 5 standard errors above",
                 where, len(gains), min(high for _, high in gains), -0.02),
    ]  # fmt: skip
