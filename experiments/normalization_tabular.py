"""SeeUPO, Table 5 in exact form: no, batch-level or group-level normalisation of advantages.

SeeUPO (arXiv 2602.06554, section 4) argues that dividing all advantages by one standard deviation of
the batch leaves every maximiser where it is, while dividing each task's by its own (GRPO, arXiv
2402.03300) rescales them state by state and can break the guarantee; Table 5 compares the three.

    python -m experiments.normalization_tabular [--size tiny]        # about 25 s on two free cores
    python -m experiments.normalization_tabular --replay RUN/counterexamples/alike_tasks.json

Exact: everything but the learning curves with finite groups, which are sampled through
`core.group_relative`; intervals are 95 % over random mixtures of tasks.

Expected result.
1. Scale of the batch: the new policy is the same, greedy or clipped, for every MDP. With steps of
   equal length learning curves coincide too. With an equal rate it acts as a step size that grows
   while returns become alike.
2. Mean of the batch: group advantages have mean 0 already, unless episodes end early, where the pool
   of a late turn has another mean. A constant leaves greedy updates alone (E[r M] is what it is
   multiplied by, the same for every r) and changes clipped ones (`pool_mean`), here for the better:
   about 5 % more gain, because the pool's own mean is a better baseline than the task's.
3. Scale of the group, for policies that see the state and have a row of their own in each: the greedy
   update is again the same (derived here: given the state, what follows does not depend on the
   task, so its standard deviations enter as one positive factor a row), and the clipped one nearly
   always. The paper's argument needs tasks that share something. Then it holds: two tasks that look
   alike get the wrong action, and J falls by as much as it rises without normalisation; two tasks
   that share a parameter get a gradient of the wrong sign, -0.50 where the derivative of the sum of
   success rates is +0.15.
4. What group scale optimises: for outcomes 0 or 1 and groups without bound its gradient is that of
   sum over tasks of 2 arcsin sqrt(p), not of p. It favours tasks that are nearly solved or nearly
   hopeless. On random mixtures of tasks that share features this costs next to nothing on average:
   with equal step lengths it ends lower on 64 % of them if groups have no bound and on 42 % with
   groups of 8, and the mean difference, below 0.001, is within its interval in both.
5. Placeholders of shorter episodes: with masks nothing depends on them. Counted as advantage 0 in
   mean and standard deviation, as the released code does, they move the mean toward 0 and shrink the
   scale (to 0.67 of it with a quarter of the chains left). The scale is harmless. The mean changes
   the sign of up to 12 % of the advantages of the last turn (`placeholders`), and the more chains
   have ended the more it takes back of what centring gains: all of it with a quarter left.

Different from the paper: exact expectations, small MDPs, one update a turn. Wrong in the paper: 3 says
that state-dependent scaling alone is not enough to break the guarantee.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments import theory
from experiments.theory import ragged_batches, task_mixtures
from experiments.theory.claims import Counterexample, Findings, at_least, at_most, mdp_arrays
from paper_figures import orders as figures
from tabular.orders import sweeps
from tabular.orders.ragged import pool_normalised

SHAPE = (3, 2, 3)
CLIP = sweeps.Clip(0.2, 0.2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options.

    Attributes:
      size: preset of the other options.
      seed: of MDPs, mixtures and samples.
      num_mdps: random MDPs for exact updates.
      num_mixtures: random mixtures of tasks for the learning curves.
      num_iterations: length of the learning curves.
    """

    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    num_mdps: int = 200
    num_mixtures: int = 200
    num_iterations: int = 60

    def __post_init__(self):
        if min(self.num_mdps, self.num_mixtures) < 2 or self.num_iterations < 1:
            raise ValueError(
                f"num_mdps={self.num_mdps}, num_mixtures={self.num_mixtures}, num_iterations="
                f"{self.num_iterations}: use 2 or more MDPs and mixtures and 1 or more iterations"
            )


PRESETS = {
    "cpu": Config(),
    "tiny": Config(size="tiny", num_mdps=30, num_mixtures=30, num_iterations=15),
}


@jax.jit
def _updates(mdp, policy, clip):
    """New policies of one reverse SeeUPO sweep, by normalisation."""
    paths = tabular.all_paths(*SHAPE, early_end=True)
    weights = tabular.path_probabilities(mdp, policy, paths)
    plain = tabular.group_advantages(mdp, policy, paths)
    found = {
        "none": plain,
        "batch scale": pool_normalised(paths, weights, plain, centre=False),
        "batch mean and scale": pool_normalised(paths, weights, plain, centre=True),
        "group scale": tabular.group_advantages(mdp, policy, paths, scale=True),
    }
    kinds = jnp.stack(list(found.values()))
    order = tabular.reverse_order(SHAPE[0])
    new = jax.vmap(lambda a: tabular.sequential(policy, paths, weights, a, order, *clip))(kinds)
    return dict(zip(found, new, strict=True))


def random_updates(config: Config) -> Findings:
    """Does a normalisation change what the exact maximisers are?"""
    mdp_key, policy_key = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), 0))
    draw = jax.vmap(lambda key: tabular.random_mdp(key, *SHAPE, termination=0.5))
    mdps = jax.jit(draw)(jax.random.split(mdp_key, config.num_mdps))
    family = tabular.per_turn_table(SHAPE)
    keys = jax.random.split(policy_key, config.num_mdps)
    policies = jax.vmap(lambda key: family.policy(family.init(key)))(keys)
    gain = jax.jit(jax.vmap(lambda mdp, new, old: tabular.performance(mdp, new)
                            - tabular.performance(mdp, old)))  # fmt: skip
    moved, rows = {}, []
    for update, clip in (("greedy", sweeps.GREEDY), ("clipped", CLIP)):
        new = jax.vmap(_updates, (0, 0, None))(mdps, policies, clip)
        gains = {name: np.asarray(gain(mdps, policy, policies)) for name, policy in new.items()}
        for name, policy in new.items():
            distance = np.abs(np.asarray(policy - new["none"])).max((1, 2, 3))
            moved[update, name] = distance.max()
            if (update, name) == ("clipped", "batch mean and scale"):
                worst = int(distance.argmax())
            rows.append(
                {"update": update, "normalisation": name, "changed": (distance > 1e-9).mean(),
                 "largest change": distance.max(), "gain": gains[name].mean(),
                 "gain lost": (gains["none"] - gains[name]).mean(), "worst gain": gains[name].min()}
            )  # fmt: skip
    where, n = f"{config.num_mdps} random MDPs and policies, two tasks, early ends", config.num_mdps
    claims = [
        at_most("scale of the batch changes no maximiser, greedy or clipped; probability", where,
                2 * n, max(moved[u, "batch scale"] for u in ("greedy", "clipped")), 1e-9),
        at_most("mean of the pool changes no greedy maximiser; probability", where, n,
                moved["greedy", "batch mean and scale"], 1e-9),
        at_most("mean of the pool changes no clipped maximiser; probability", where, n,
                moved["clipped", "batch mean and scale"], 0.01, expected=False,
                counterexample="pool_mean"),
        at_most("scale of the group changes no greedy maximiser if rows see the state; probability",
                where, n, moved["greedy", "group scale"], 1e-9),
    ]  # fmt: skip
    mdp, policy = jax.tree.map(lambda leaf: leaf[worst], (mdps, policies))
    arrays = {**mdp_arrays(mdp), "policy": policy}
    centred = Counterexample(
        statement="Episodes that end early give the pool of a late turn a mean that is not 0. "
        "Subtracting it changes signs, and so which ratios the clip holds: another new policy.",
        arrays=arrays, settings={"kind": "pool mean"}, numbers=pool_mean_numbers(arrays),
    )  # fmt: skip
    return Findings(claims=claims, tables={"updates": rows}, counterexamples={"pool_mean": centred})


def pool_mean_numbers(arrays: dict) -> dict[str, float]:
    """Largest change of a probability by the mean of the pool, and gains of both clipped updates."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    old = jnp.asarray(arrays["policy"])
    new = _updates(mdp, old, CLIP)
    numbers = {"largest change": jnp.abs(new["batch mean and scale"] - new["none"]).max()}
    for name in ("none", "batch mean and scale"):
        gain = tabular.performance(mdp, new[name]) - tabular.performance(mdp, old)
        numbers[f"gain, {name}"] = gain
    return {name: float(number) for name, number in numbers.items()}


def alike_tasks() -> tabular.Instance:
    """Two tasks that look alike: one of middling and one of low success, with opposite good actions.

    Success after actions 0, 1: (0.55, 0.45) and (0, 0.04). Action 0 is better by 0.1 in the first
    task, whose returns have deviation 0.5; action 1 by 0.04 in the second, deviation 0.14.
    """
    success = np.array([[0.55, 0.45], [0.0, 0.04]])
    transitions, rewards = np.zeros((2, 4, 2, 4)), np.zeros((2, 4, 2))
    transitions[0, :2, :, 2], transitions[0, :2, :, 3] = success, 1.0 - success
    transitions[0, 2:, :, 2] = 1.0
    rewards[1, 2] = 1.0
    mdp = tabular.TurnMDP(transitions, rewards, np.array([0.5, 0.5, 0.0, 0.0]))
    contexts = jnp.array([[0, 0, 1, 2], [0, 0, 1, 2]])
    return tabular.Instance(mdp, tabular.uniform_policy(mdp), contexts)


def alike_numbers(arrays: dict) -> dict[str, float]:
    """Change of J by one clipped update on tasks that look alike, with and without group scale."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    return {name: float(change) for name, change in _alike(mdp, arrays["contexts"]).items()}


@jax.jit
def _alike(mdp, contexts):
    policy, paths = tabular.uniform_policy(mdp), tabular.all_paths(2, 4, 2, early_end=False)
    weights, changes = tabular.path_probabilities(mdp, policy, paths), {}
    for name, scale in (("none", False), ("group scale", True)):
        found = tabular.group_advantages(mdp, policy, paths, scale=scale)
        new = tabular.simultaneous(policy, paths, weights, found, *CLIP, contexts)
        changes[name] = tabular.performance(mdp, new) - tabular.performance(mdp, policy)
    return changes


def shared_tasks() -> Findings:
    """Two tasks that share a context, and two that share a parameter."""
    instance = alike_tasks()
    arrays = {**mdp_arrays(instance.mdp), "contexts": instance.contexts}
    changes = alike_numbers(arrays)
    counterexample = Counterexample(
        statement="Two tasks that look alike: group scale weighs the small gain of a nearly "
        "hopeless task higher than the large one of the other, and J falls.",
        arrays=arrays, settings={"kind": "alike"}, numbers=changes,
    )  # fmt: skip
    flip = task_mixtures.sign_flip()
    claims = [
        at_least("without normalisation the update of two tasks that look alike raises J; dJ",
                 "1 toy", 1, changes["none"], 1e-3),
        at_least("group scale does not lower J; dJ", "1 toy", 1, changes["group scale"], -1e-3,
                 expected=False, counterexample="alike_tasks"),
        at_most("two tasks, one parameter: d(p1 + p2) = +0.15; |difference|", "1 toy", 1,
                abs(flip["none"] - 0.15), 1e-10),
        at_most("... and the direction of group scale is -0.50; |difference|", "1 toy", 1,
                abs(flip["group"] + 0.5), 1e-10),
    ]  # fmt: skip
    rows = [{"toy": toy, "normalisation": name, "number": number}
            for toy, numbers in (("alike tasks, dJ", changes), ("shared parameter, slope", flip))
            for name, number in numbers.items()]  # fmt: skip
    return Findings(claims=claims, tables={"shared_tasks": rows},
                    counterexamples={"alike_tasks": counterexample})  # fmt: skip


def curves(config: Config) -> Findings:
    """Learning curves, and what group scale ascends."""
    found = task_mixtures.learning_curves(config.seed, config.num_mixtures, config.num_iterations)
    equal = max(
        abs(found["equal length", groups, "none"] - found["equal length", groups, "batch"]).max()
        for groups in {key[1] for key in found}
    )
    error = task_mixtures.arcsine_error(config.seed, config.num_mixtures)
    where, n = f"{config.num_mixtures} random mixtures, shared features", config.num_mixtures
    claims = [
        at_most("group scale, groups without bound, ascends sum P(task) 2 arcsin sqrt(p); gradient",
                where, n, error, 1e-10),
        at_most("steps of equal length: no and batch normalisation learn alike; difference of J",
                where, 2 * n, equal, 1e-6),
    ]  # fmt: skip
    tables = {"curves": task_mixtures.curve_rows(found),
              "differences": task_mixtures.difference_rows(found)}  # fmt: skip
    return Findings(claims=claims, tables=tables)


def run(config: Config, say: theory.Say = theory.silent) -> Findings:
    """All parts; numbers only."""
    claims, tables, counterexamples = [], {}, {}
    parts = (
        (f"exact updates on {config.num_mdps} random MDPs", lambda: random_updates(config)),
        ("tasks that share a context or a parameter", shared_tasks),
        (f"learning curves on {config.num_mixtures} mixtures", lambda: curves(config)),
        ("placeholders", lambda: ragged_batches.placeholders(config.seed, config.num_mdps)),
    )
    for message, part in parts:
        say(message)
        found = part()
        claims += found.claims
        tables |= found.tables
        counterexamples |= found.counterexamples
    return Findings(claims=claims, tables=tables, counterexamples=counterexamples)


def replay(counterexample: Counterexample) -> dict[str, float]:
    """The numbers of a counterexample, computed again."""
    numbers = {"alike": alike_numbers, "pool mean": pool_mean_numbers,
               "placeholders": ragged_batches.placeholder_numbers}  # fmt: skip
    return numbers[counterexample.settings["kind"]](counterexample.arrays)


EXPERIMENT = theory.Experiment(
    name="normalization_tabular",
    description=__doc__,
    presets=PRESETS,
    run=run,
    figures=figures.draw_normalization,
    replay=replay,
)

if __name__ == "__main__":
    raise SystemExit(theory.main(EXPERIMENT))
