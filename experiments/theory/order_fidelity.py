"""Part of `experiments.update_order_tabular`: the compound ratio of SeeUPO against the true one."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Counterexample, Findings, at_most, mdp_arrays
from tabular.orders.compound import Rule, compound_iteration

# Three turns, two states; an action is two tokens of two, so there are four.
TURNS, STATES, TOKENS, LENGTH = 3, 2, 2, 2
ACTIONS = TOKENS**LENGTH
STEPS = 4
# In logits per unit of reward: a step far inside the clip, and one that reaches it.
LEARNING_RATES = {"small": 1.0, "large": 12.0}
RULES = {
    "product (Eq. 8)": Rule(1.0, 1.0, jnp.inf, False),
    "geometric mean": Rule(1.0 / LENGTH, 1.0, jnp.inf, False),
    "geometric mean, clamped": Rule(1.0 / LENGTH, 0.2, 0.2, False),
    "product, refreshed": Rule(1.0, 1.0, jnp.inf, True),
    "geometric mean, refreshed": Rule(1.0 / LENGTH, 1.0, jnp.inf, True),
    "geometric mean, clamped, refreshed (released code)": Rule(1.0 / LENGTH, 0.2, 0.2, True),
}
SHARING = ("per turn", "shared")


def family_of(sharing: str) -> tabular.PolicyClass:
    """Strings of tokens with a softmax per prefix: for every turn its own, or one for all turns."""
    tree = tabular.token_tree(TURNS, STATES, TOKENS, LENGTH)
    if sharing == "per turn":
        return tree
    shape = (TURNS, *tree.shape[1:])
    return dataclasses.replace(
        tree, shape=tree.shape[1:], logits=lambda params: jnp.broadcast_to(params, shape)
    )


@functools.partial(jax.jit, static_argnames="sharing")
def _iterate(mdp, params, rule, learning_rate, sharing):
    paths = tabular.all_paths(TURNS, STATES, ACTIONS, early_end=False)
    family = family_of(sharing)
    return compound_iteration(mdp, family, params, paths, rule, learning_rate, STEPS, 0.2, 0.2)


def numbers(arrays: dict, settings: dict) -> dict[str, float]:
    """True gain, and what the compound ratio says it is, for one instance and rule."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    rule = RULES[settings["rule"]]
    rate = LEARNING_RATES[settings["steps"]]
    found = _iterate(mdp, arrays["params"], rule, rate, settings["sharing"])
    return {name: float(getattr(found, name)) for name in ("gain", "estimate", "deviation")}


def fidelity(seed: int, num_mdps: int) -> Findings:
    """Every rule with parameters per turn and shared ones, on random MDPs."""
    mdp_key, parameter_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    draw = jax.jit(jax.vmap(lambda key: tabular.random_mdp(
        key, TURNS, STATES, ACTIONS, terminal_reward_only=True)))  # fmt: skip
    mdps, rows, error, start = draw(jax.random.split(mdp_key, num_mdps)), [], {}, {}
    many = jax.vmap(_iterate, (0, 0, None, None, None))
    for sharing in SHARING:
        keys = jax.random.split(parameter_key, num_mdps)
        params = jax.vmap(lambda key, s=sharing: family_of(s).init(key, 0.5))(keys)
        start[sharing] = params
        for (steps, rate), (name, rule) in itertools.product(LEARNING_RATES.items(), RULES.items()):
            found = many(mdps, params, rule, rate, sharing)
            gain, said = np.asarray(found.gain), np.asarray(found.estimate)
            error[sharing, name, steps] = abs(said - gain)
            rows.append(
                {"parameters": sharing, "steps": steps, "rule": name, "gain": gain.mean(),
                 "estimate": said.mean(), "error / gain": abs(said - gain).mean() / gain.mean(),
                 "worst error": abs(said - gain).max(),
                 "deviation": float(found.deviation.mean())}
            )  # fmt: skip
    return _judge(mdps, start, error, rows)


def _judge(mdps, start, error, rows):
    num_mdps = len(mdps.rewards)
    where = f"{num_mdps} random MDPs, actions of {LENGTH} tokens"
    exact = [error["per turn", name, steps].max() for steps in LEARNING_RATES
             for name in ("product (Eq. 8)", "product, refreshed")]  # fmt: skip
    claims = [at_most("E_old[M_0] = J(new) - J(old) for the product of ratios, parameters per turn "
                      "(SeeUPO Eqs. 4, 8)", where, 4 * num_mdps, max(exact), 1e-12)]  # fmt: skip
    counterexamples = {}
    for sharing, name, label in (
        ("per turn", "geometric mean", "geometric"),
        ("per turn", "geometric mean, clamped", "clamped"),
        ("shared", "product (Eq. 8)", "shared_product"),
        ("shared", "geometric mean, clamped, refreshed (released code)", "shared_released"),
    ):
        worst = int(error[sharing, name, "large"].argmax())
        claims.append(
            at_most(f"SeeUPO, E_old[M_0] = J(new) - J(old): {name}, parameters {sharing}", where,
                    num_mdps, error[sharing, name, "large"].max(), 1e-3, expected=False,
                    counterexample=label)
        )  # fmt: skip
        arrays = {**mdp_arrays(jax.tree.map(lambda leaf, i=worst: leaf[i], mdps)),
                  "params": start[sharing][worst]}  # fmt: skip
        settings = {"kind": "fidelity", "sharing": sharing, "rule": name, "steps": "large"}
        counterexamples[label] = Counterexample(
            statement=f"Compound ratio by {name}, parameters {sharing}: what the data of the old "
            "policy say about the gain (estimate) is not the gain.",
            arrays=arrays, settings=settings, numbers=numbers(arrays, settings),
        )  # fmt: skip
    return Findings(claims=claims, tables={"compound": rows}, counterexamples=counterexamples)
