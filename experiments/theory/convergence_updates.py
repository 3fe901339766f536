"""Theorem 1 of RTPO against the update that RTPO really runs, the clipped surrogate.

The second part of `experiments.theorem_convergence`, which says what is checked.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Counterexample, Findings, at_least, at_most, mdp_arrays
from experiments.theory.intervals import half_width
from tabular.learning.clipped_gradient import Ascent, ascent_sweep, sampled_sweep, slow_branch

H, S, A = 3, 3, 3
CLIP = 0.2
EPOCHS = 4
# From the uniform policy the best action at least gains a factor 1 + CLIP every time.
STAGES_A_TURN = math.ceil(math.log(A) / math.log(1 + CLIP))
ORDERS = ("reverse", "natural", "random", "simultaneous")


def maximiser(
    key: jax.Array, mdps: tabular.TurnMDP, policies: jax.Array, num_sweeps: int
) -> Findings:
    """Exact maximisation of the clipped surrogate: one pass of converged turns, and sweeps."""
    num_mdps = mdps.start.shape[0]
    where = f"{num_mdps} random MDPs, {H} turns, clip {CLIP}"
    loss = np.asarray(_converged_turns(mdps))
    claims = [
        at_most(f"one reverse pass, {STAGES_A_TURN} >= log A / log(1 + clip) stages a turn: V = V*"
                " (derived here)", f"{where}, uniform start", num_mdps, loss.max(), 1e-12),
    ]  # fmt: skip
    uniform = jnp.full(policies.shape, 1.0 / A)
    starts = {"uniform": uniform, "random": policies}
    best, rows, curves = np.asarray(_optima(mdps)), [], []
    drops, moves, shares, left = [], [], {}, []
    for start, behavior in starts.items():
        for name in ORDERS:
            orders = sweep_orders(name, key, num_sweeps)
            path, move = map(np.asarray, _maximiser_sweeps(mdps, behavior, orders,
                                                           name != "simultaneous"))  # fmt: skip
            rows.append({"start": start, "order": name, **summary(best, path)})
            curves += curve_rows(f"maximiser, {start}", name, best, path)
            drops.append(np.diff(path, axis=1).min())
            moves.append(move.max())
            left.append(relative_gap(best, path)[:, -1].mean())
            shares[start, name] = rows[-1]["optimal_share"]
    checked = len(rows) * num_mdps * num_sweeps
    claims += [
        at_least("sweeps of the clipped maximiser (RTPO, Eq. 6) never lower J, any order",
                 where, checked, min(drops), -1e-12),
        at_most("sweeps of the clipped maximiser (RTPO, Eq. 6) leave little of the gap, any order "
                "(idle: 1)", f"{where}; mean share, {num_sweeps} sweeps", len(rows) * num_mdps,
                max(left), 0.1),
        at_most("a stage moves no row by more than the clip in total variation (derived here)",
                where, checked, max(moves), CLIP + 1e-9),
        at_least("RTPO Thm 1 for Eq. 6: reverse sweeps of the clipped maximiser end at V*",
                 f"{where}, random starts; share of MDPs", num_mdps, shares["random", "reverse"],
                 0.99, expected=False, counterexample="slow_branch"),
        at_most("natural sweeps are the simultaneous update, trunks being those of the start "
                "(derived here)", where, 2 * num_mdps, order_difference(curves), 1e-12),
    ]  # fmt: skip
    return Findings(claims=claims, tables={"sweeps": rows, "sweep_curves": curves},
                    counterexamples={"slow_branch": lost_branch()})  # fmt: skip


def order_difference(curves: list[dict]) -> float:
    """Largest difference between the mean curves of natural and simultaneous sweeps."""
    gaps = {name: np.array([r["mean_gap"] for r in curves if r["order"] == name])
            for name in ("natural", "simultaneous")}  # fmt: skip
    return np.abs(gaps["natural"] - gaps["simultaneous"]).max()


def lost_branch() -> Counterexample:
    """Reverse sweeps from the uniform policy that end below the recursive optimum."""
    instance = slow_branch()
    arrays = {**mdp_arrays(instance.mdp), "policy": instance.policy}
    settings = {"kind": "clipped", "clip": CLIP, "sweeps": 20, "stages_a_turn": 10}
    return Counterexample(
        statement="Reverse sweeps of the exact clipped maximiser, one stage a turn, drop the branch "
        "with the best continuation before its continuation is learned, and stay at 0.7; one pass "
        "with converged turns reaches 1.",
        arrays=arrays,
        settings=settings,
        numbers=clipped_numbers(arrays, settings),
    )


def clipped_numbers(arrays: dict, settings: dict) -> dict[str, float]:
    """Performance before, after sweeps, after one pass of converged turns, and the best."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    back = tabular.reverse_order(mdp.num_turns)
    clip = settings["clip"]

    @jax.jit
    def run(policy, stages):
        def stage(current, order):
            return tabular.siblings(mdp, current, order, clip, clip), None

        return tabular.performance(mdp, jax.lax.scan(stage, policy, stages)[0])

    start = jnp.asarray(arrays["policy"])
    sweeps = jnp.broadcast_to(back, (settings["sweeps"], mdp.num_turns))
    # A turn that comes twice in one sweep moves once: such rows are single stages of one shape.
    converged = jnp.repeat(back, settings["stages_a_turn"])[:, None]
    converged = jnp.broadcast_to(converged, (converged.size, mdp.num_turns))
    return {
        "performance_before": float(tabular.performance(mdp, start)),
        "performance_after_sweeps": float(run(start, sweeps)),
        "performance_converged_turns": float(run(start, converged)),
        "performance_optimal": float(mdp.start @ tabular.optimal_values(mdp)[0]),
    }


def ascent(key: jax.Array, mdps: tabular.TurnMDP, num_sweeps: int) -> Findings:
    """Gradient ascent in softmax logits on the exact expectation of J_k."""
    num_mdps = mdps.start.shape[0]
    best = np.asarray(_optima(mdps))
    rate = jnp.float64(10.0)
    curves, drops, last, rows = [], [], {}, []
    for name in ("reverse", "natural", "random"):
        orders = sweep_orders(name, key, num_sweeps)
        path = np.asarray(_ascent_sweeps(mdps, orders, rate))
        curves += curve_rows("ascent, uniform", name, best, path)
        rows.append({"start": "uniform, ascent", "order": name, **summary(best, path, 0.05)})
        drops.append(np.diff(path, axis=1).min())
        last[name] = relative_gap(best, path)[:, [num_sweeps // 2, num_sweeps]]
    where = f"{num_mdps} random MDPs, {num_sweeps} sweeps of {EPOCHS} epochs, learning rate 10"
    gap = last["reverse"]
    slope = np.log2(gap[:, 1].mean() / gap[:, 0].mean())
    claims = [
        at_least("sweeps of ascent on J_k (RTPO, Eq. 6) never lower J, any order", where, 3 * num_mdps
                 * num_sweeps, min(drops), -1e-12),
        at_most("sweeps of ascent on J_k (RTPO, Eq. 6) leave little of the gap to V*, any order (idle: "
                "1)", f"{where}; mean share", 3 * num_mdps,
                max(g[:, 1].mean() for g in last.values()), 0.05),
        at_most("reverse sweeps of ascent (RTPO, Eq. 6) close the gap to V*",
                f"{where}; largest share left", num_mdps, gap[:, 1].max(), 0.05),
        at_most("the gap of ascent falls like 1 / sweeps, not in one pass (derived here)",
                f"{where}; exponent plus 1", num_mdps, abs(slope + 1), 0.2),
    ]  # fmt: skip
    return Findings(claims=claims, tables={"ascent": rows, "ascent_curves": curves})


def siblings(
    key: jax.Array,
    mdps: tabular.TurnMDP,
    num_seeds: int,
    num_sweeps: int,
    counts: tuple[int, ...],
) -> Findings:
    """Sampled trunks and siblings at equal numbers of siblings and equal expected first steps."""
    num_mdps = mdps.start.shape[0]
    best = np.asarray(_optima(mdps))
    keys = jax.random.split(key, (num_mdps, num_seeds))
    curves, ends = [], {}
    for count in counts:
        path = np.asarray(_sampled_sweeps(keys, mdps, num_sweeps, 128 // count, count))
        gap = relative_gap(best[:, None], path).mean(0)
        ends[count] = gap[:, -1]
        half = half_width(gap)
        curves += [
            {"siblings": count, "sweep": t, "mean_gap": gap.mean(0)[t], "half_width": half[t]}
            for t in range(num_sweeps + 1)
        ]
    where = f"{num_mdps} MDPs, {num_seeds} seeds, {num_sweeps} sweeps, 128 siblings a turn"
    claims = [
        at_most(f"RTPO, sampled siblings, n = {count}: share of the gap to V* left, upper end of 95%",
                f"{where}; t with {num_seeds - 1} degrees of freedom", num_mdps * num_seeds,
                end.mean() + half_width(end), 0.2)
        for count, end in ends.items()
    ]  # fmt: skip
    return Findings(claims=claims, tables={"siblings": curves})


def sweep_orders(name: str, key: jax.Array, num_sweeps: int) -> jax.Array:
    """Order of the stages in every sweep, [T, H]."""
    back = tabular.reverse_order(H)
    if name == "random":
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return jnp.asarray(rng.permuted(np.tile(np.arange(H), (num_sweeps, 1)), axis=-1))
    return jnp.broadcast_to(back[::-1] if name == "natural" else back, (num_sweeps, H))


def relative_gap(best: np.ndarray, path: np.ndarray) -> np.ndarray:
    """(J* - J) / (J* - J at the start) along the last axis of `path`."""
    return (best[..., None] - path) / (best[..., None] - path[..., :1])


def summary(best: np.ndarray, path: np.ndarray, share: float = 1e-9) -> dict[str, float]:
    """How many MDPs reach J* up to a share of the gap, after how many sweeps, what the rest loses."""
    reached = relative_gap(best, path) <= share
    first = reached.argmax(1)[reached.any(1)]
    return {
        "optimal_share": reached.any(1).mean(),
        "mean_sweeps": first.mean() if first.size else float("nan"),
        "largest_sweeps": int(first.max()) if first.size else -1,
        "largest_loss": (best - path[:, -1]).max(),
    }


def curve_rows(update: str, order: str, best: np.ndarray, path: np.ndarray) -> list[dict]:
    """Mean share of the gap left after every sweep."""
    gap = relative_gap(best, path).mean(0)
    return [{"update": update, "order": order, "sweep": t, "mean_gap": g}
            for t, g in enumerate(gap)]  # fmt: skip


@jax.jit
@jax.vmap
def _optima(mdp):
    return mdp.start @ tabular.optimal_values(mdp)[0]


@jax.jit
@jax.vmap
def _converged_turns(mdp):
    """Largest |V - V*| after one reverse pass with enough maximisations at each turn."""

    def stage(policy, turn):
        return tabular.siblings(mdp, policy, turn[None], CLIP, CLIP), None

    order = jnp.repeat(tabular.reverse_order(H), STAGES_A_TURN)
    policy = jax.lax.scan(stage, tabular.uniform_policy(mdp), order)[0]
    return jnp.abs(tabular.values(mdp, policy).V - tabular.optimal_values(mdp)).max()


def _maximiser_sweeps(mdps, policies, orders, fresh):
    """J before and after every sweep [B, T+1]; largest move of a row in total variation [B, T]."""
    return _maximise[fresh](mdps, policies, orders)


def _sweeps_of(fresh):
    def run(mdp, policy, orders):
        def sweep(current, order):
            after = tabular.siblings(mdp, current, order, CLIP, CLIP, fresh=fresh)
            move = 0.5 * jnp.abs(after - current).sum(-1).max()
            return after, (tabular.performance(mdp, after), move)

        path, move = jax.lax.scan(sweep, policy, orders)[1]
        return jnp.concatenate([tabular.performance(mdp, policy)[None], path]), move

    return jax.jit(jax.vmap(run, (0, 0, None)))


_maximise = {fresh: _sweeps_of(fresh) for fresh in (True, False)}


@jax.jit
def _ascent_sweeps(mdps, orders, rate):
    table = tabular.per_turn_table((H, S, A))

    def run(mdp):
        def sweep(params, order):
            after = ascent_sweep(mdp, table, params, order, Ascent(CLIP, CLIP, rate), EPOCHS)
            return after, tabular.performance(mdp, table.policy(after))

        path = jax.lax.scan(sweep, jnp.zeros(table.shape), orders)[1]
        return jnp.concatenate([tabular.performance(mdp, tabular.uniform_policy(mdp))[None], path])

    return jax.vmap(run)(mdps)


def _sampled_sweeps(keys, mdps, num_sweeps, num_trunks, num_siblings):
    """J before and after every sweep, [B, R, T+1]."""
    table = tabular.per_turn_table((H, S, A))
    # Times n / (n - 1), so that the expected first step is that of unbounded siblings (Eq. 64).
    settings = Ascent(CLIP, CLIP, 3.0 * num_siblings / (num_siblings - 1))

    def run(key, mdp):
        def sweep(params, sweep_key):
            after = sampled_sweep(sweep_key, mdp, table, params, tabular.reverse_order(H), settings,
                                  EPOCHS, num_trunks=num_trunks,
                                  num_siblings=num_siblings)  # fmt: skip
            return after, tabular.performance(mdp, table.policy(after))

        path = jax.lax.scan(sweep, jnp.zeros(table.shape), jax.random.split(key, num_sweeps))[1]
        return jnp.concatenate([tabular.performance(mdp, tabular.uniform_policy(mdp))[None], path])

    return jax.jit(jax.vmap(jax.vmap(run, (0, None))))(keys, mdps)
