"""SeeUPO, Table 4 in exact form: does it matter in which order the turns are updated?

SeeUPO (arXiv 2602.06554) updates the turns of an episode one after the other, from last to first,
and compares that order with the natural and a random one (Table 4: reverse is best on AppWorld and
BFCL). Its Theorem 1 says that an iteration never lowers performance, in any order, if the ratios of
the turns already updated are carried along (Eqs. 6-8); its Theorem 2 that the reverse order ends at
the optimum. RTPO (arXiv 2608.18682, Algorithm 1) has the same order and regenerates what follows a
turn instead of carrying ratios.

    python -m experiments.update_order_tabular [--size tiny]        # about 25 s on two free cores
    python -m experiments.update_order_tabular --replay RUN/counterexamples/natural_order_stuck.json

Exact: everything. Data of unlimited size, all episodes enumerated, random MDPs with an outcome
reward, nothing hidden unless stated. Sampled: the MDPs and the random orders (95 % intervals).

Expected result.
1. Greedy updates from data of the uniform policy: reverse reaches the optimum in one sweep on every
   MDP, for SeeUPO, for group advantages with new data before each turn, and for siblings. Natural
   order and all turns at once stop short of it on 62 % of the MDPs, on a fifth with over 5 % of the
   gap left, for good: a policy that became deterministic has no data on what it does not
   do. On `toy_reverse_order` natural stays at 0.5, reverse has 0.9 at once, and a random order is
   the right one half the time.
2. Policy iteration that looks at every state and action needs at most H sweeps in any order, and
   one in reverse.
3. With the clip (0.2) SeeUPO is monotone in every order and all orders end near the optimum; the
   order is worth less than one sweep in eight. Siblings need half the sweeps: a mean advantage has
   one sign an action, and its clip leaves the losing side free. In natural order that can end in a
   policy that is deterministic before its later turns are good: a clip does not prevent it.
4. Small gradient steps: orders differ by O(step^2) only, below 1 % of the gain here. Language models
   are trained in this regime, so a large effect of order needs another reason than the theorems.
5. The compound ratio M matters where a turn cannot see what an earlier one did (`toy_hidden_action`:
   both best responses at once lead from 0.48 to 0, with M to 1), and not at all in natural order
   with one task and nothing hidden (derived here: there M only rescales rows).
6. M as written (Eq. 8) predicts the gain exactly, E_old[M_0] = J(new) - J(old), for parameters of
   their own in every turn. The geometric mean and the clamps of the released code break that, and
   with shared parameters every rule does. Shared parameters and large steps turn the ranking round:
   the denominators of Eq. 8, fixed at the start, then gain far less than refreshed ones, since a
   stage starts where the stages before it left all turns, beyond its clip.
7. Only the last m turns one by one, the rest at once: what is lost shrinks with m and is 0 from
   m = H - 1 on.

What the paper leaves out: both theorems hold as stated, for exact data and parameters per turn. They
do not cover clipped updates in sweeps (3), small steps (4) and shared parameters (6), which its
experiments have, and the ratio of its released code is not the M of Eq. 8 that they are about.
"""

import dataclasses
from typing import Literal

import jax
import numpy as np

import tabular
from experiments import theory
from experiments.theory import order_fidelity, order_toys
from experiments.theory.claims import Counterexample, Findings, at_least, at_most, mdp_arrays
from paper_figures import orders as figures
from tabular.orders import sweeps

SHAPE = (3, 3, 2)
ORDERS = ("reverse", "natural", "random")
# Share of the way to the optimum that counts as arrived.
ARRIVED = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options.

    Attributes:
      size: preset of the other options.
      seed: of MDPs and random orders.
      num_mdps: random MDPs.
      num_sweeps: iterations of each.
      clip: distance of both bounds of the ratio from 1.
    """

    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    num_mdps: int = 300
    num_sweeps: int = 24
    clip: float = 0.2

    def __post_init__(self):
        if self.num_mdps < 2 or self.num_sweeps < SHAPE[0]:
            raise ValueError(
                f"num_mdps={self.num_mdps}, num_sweeps={self.num_sweeps}: use 2 or more MDPs and "
                f"{SHAPE[0]} or more sweeps"
            )
        if not 0.0 < self.clip < 1.0:
            raise ValueError(f"clip={self.clip}: use a number between 0 and 1")


PRESETS = {"cpu": Config(), "tiny": Config(size="tiny", num_mdps=40, num_sweeps=12)}


def draw_mdps(config: Config) -> tabular.TurnMDP:
    """A stack of random MDPs whose last turn alone pays."""
    root = jax.random.fold_in(jax.random.key(config.seed), 0)
    keys = jax.random.split(root, config.num_mdps)
    return jax.jit(
        jax.vmap(lambda key: tabular.random_mdp(key, *SHAPE, terminal_reward_only=True))
    )(keys)


def draw_schedules(config: Config) -> dict[str, np.ndarray]:
    """Orders [num_mdps, num_sweeps, H] by name; random draws a new one for every sweep."""
    natural = np.tile(np.arange(SHAPE[0]), (config.num_mdps, config.num_sweeps, 1))
    mixed = np.random.default_rng(config.seed).permuted(natural, axis=-1)
    return {"reverse": natural[..., ::-1].copy(), "natural": natural, "random": mixed}


METHODS = ("SeeUPO", "group PPU, new data a turn", "RTPO")
AT_ONCE = "group PPU, all at once"


def race(config: Config, mdps: tabular.TurnMDP) -> dict[tuple[str, str, str], np.ndarray]:
    """Performance [num_mdps, num_sweeps + 1] by update (greedy, clipped), method and order."""
    schedules, found = draw_schedules(config), {}
    for update, clip in clips(config).items():
        for method in METHODS:
            for order in ORDERS:
                reached = order_toys.repeated(method)(mdps, schedules[order], clip)
                found[update, method, order] = np.asarray(reached)
        # Without carried ratios and without new data the order cannot matter.
        counts = np.zeros((config.num_mdps, config.num_sweeps), int)
        reached = order_toys.repeated("partial")(mdps, counts, clip)
        found[update, AT_ONCE, "none"] = np.asarray(reached)
    return found


def clips(config: Config) -> dict[str, sweeps.Clip]:
    """The two kinds of update."""
    return {"greedy": sweeps.GREEDY, "clipped": sweeps.Clip(config.clip, config.clip)}


def closed(reached: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Share of the way from the start to the optimum, [num_mdps, num_sweeps + 1]."""
    return (reached - reached[:, :1]) / (best[:, None] - reached[:, :1])


def curve_rows(found: dict, best: np.ndarray) -> list[dict]:
    """One row per update, method, order and sweep: mean share of the gap closed and arrivals."""
    rows = []
    for (update, method, order), reached in found.items():
        share = closed(reached, best)
        arrived = np.maximum.accumulate(share >= ARRIVED, axis=1)
        error = 1.96 * share.std(0, ddof=1) / np.sqrt(len(share))
        rows += [
            {"update": update, "method": method, "order": order, "sweep": sweep,
             "closed": share[:, sweep].mean(), "half_width": error[sweep],
             "worst": share[:, sweep].min(), "arrived": arrived[:, sweep].mean()}
            for sweep in range(share.shape[1])
        ]  # fmt: skip
    return rows


def arrival_rows(found: dict, best: np.ndarray) -> list[dict]:
    """One row per update, method and order: sweeps until 95 % of the gap is closed."""
    rows = []
    for (update, method, order), reached in found.items():
        share = closed(reached, best)
        arrived = share >= ARRIVED
        first = np.where(arrived.any(1), arrived.argmax(1), np.inf)
        low, middle, high = np.quantile(first, [0.1, 0.5, 0.9], method="nearest")
        rows.append(
            {"update": update, "method": method, "order": order,
             "never": float(np.isinf(first).mean()), "q10": low, "median": middle, "q90": high,
             "gap left, mean": float((1 - share[:, -1]).mean()),
             "gap left, worst": float((1 - share[:, -1]).max()),
             "worst change of J": float(np.diff(reached, axis=1).min())}
        )  # fmt: skip
    return rows


def race_claims(config: Config, mdps, found: dict, best: np.ndarray):
    """Claims about random MDPs, and the worst MDP of the natural order."""
    where = f"{config.num_mdps} random MDPs, H, S, A = {SHAPE}"
    n = config.num_mdps
    gap = {key: best - reached[:, -1] for key, reached in found.items()}
    first = max((best - found["greedy", m, "reverse"][:, 1]).max() for m in METHODS)
    worst = int(gap["greedy", "SeeUPO", "natural"].argmax())
    arrays = mdp_arrays(jax.tree.map(lambda leaf: leaf[worst], mdps))
    stuck = Counterexample(
        statement="Greedy SeeUPO in natural order stops at a policy that is not optimal and never "
        "leaves it; in reverse order one sweep is enough.",
        arrays=arrays, settings={"kind": "stuck"}, numbers=order_toys.stuck_numbers(arrays),
    )  # fmt: skip
    ends = [closed(found["clipped", "SeeUPO", order], best)[:, -1].mean() for order in ORDERS]
    rises = [np.diff(found["clipped", "SeeUPO", order], axis=1).min() for order in ORDERS]
    claims = [
        at_most("one greedy sweep in reverse order is optimal (SeeUPO Thm 2, RTPO Thm 1): SeeUPO, "
                "new data a turn, siblings; J* - J", where, 3 * n, first, 1e-12),
        at_most("greedy SeeUPO is optimal in natural order too, after all sweeps; J* - J", where, n,
                gap["greedy", "SeeUPO", "natural"].max(), 0.01, expected=False,
                counterexample="natural_order_stuck"),
        at_least("clipped SeeUPO never lowers J, in any order (SeeUPO Thm 1); dJ", where,
                 3 * n * config.num_sweeps, min(rises), -1e-12),
        at_least("clipped SeeUPO closes the gap to the optimum, in any order (idle: 0); mean share",
                 f"{where}, {config.num_sweeps} sweeps", 3 * n, min(ends), 0.9),
    ]  # fmt: skip
    return claims, {"natural_order_stuck": stuck}


def run(config: Config, say: theory.Say = theory.silent) -> Findings:
    """All parts; numbers only."""
    mdps = draw_mdps(config)
    best = np.asarray(jax.vmap(lambda m: m.start @ tabular.optimal_values(m)[0])(mdps))
    say(f"{config.num_sweeps} sweeps by order on {config.num_mdps} random MDPs")
    found = race(config, mdps)
    claims, counterexamples = race_claims(config, mdps, found, best)
    tables = {"curves": curve_rows(found, best), "arrivals": arrival_rows(found, best)}
    say("toys, policy iteration, small steps, and only the last turns one by one")
    parts = [
        order_toys.toys(),
        order_toys.exploring(mdps, best),
        order_toys.small_steps(mdps),
        order_toys.last_turns(mdps, best, clips(config), config.num_sweeps),
        order_toys.one_task(mdps, clips(config)["clipped"], config.num_sweeps),
    ]
    say("how far the compound ratio is from the ratio of the final policy")
    parts.append(order_fidelity.fidelity(config.seed, min(config.num_mdps, 60)))
    for part in parts:
        claims += part.claims
        tables |= part.tables
        counterexamples |= part.counterexamples
    return Findings(claims=claims, tables=tables, counterexamples=counterexamples)


def replay(counterexample: Counterexample) -> dict[str, float]:
    """The numbers of a counterexample, computed again."""
    kind = counterexample.settings["kind"]
    if kind == "stuck":
        return order_toys.stuck_numbers(counterexample.arrays)
    if kind == "hidden":
        return order_toys.hidden_numbers(counterexample.arrays)
    if kind == "few turns":
        return order_toys.few_turns_numbers(counterexample.arrays)
    return order_fidelity.numbers(counterexample.arrays, counterexample.settings)


EXPERIMENT = theory.Experiment(
    name="update_order_tabular",
    description=__doc__,
    presets=PRESETS,
    run=run,
    figures=figures.draw,
    replay=replay,
)

if __name__ == "__main__":
    raise SystemExit(theory.main(EXPERIMENT))
