"""Part of `experiments.normalization_tabular`: episodes of different lengths and placeholders."""

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Counterexample, Findings, at_most, mdp_arrays
from rtpo_jax import core
from tabular.orders import sweeps
from tabular.orders.ragged import pool_normalised

SHAPE = (3, 2, 3)
TERMINATION = (0.0, 0.25, 0.5, 0.75, 1.0)
CLIP = sweeps.Clip(0.2, 0.2)


@jax.jit
def _draw(key, termination):
    """A random MDP and policy; the better an action pays, the more likely it ends the episode."""
    mdp_key, policy_key = jax.random.split(key)
    mdp, family = tabular.random_mdp(mdp_key, *SHAPE), tabular.per_turn_table(SHAPE)
    transitions = mdp.transitions * (1.0 - termination * mdp.rewards)[..., None]
    mdp = tabular.TurnMDP(transitions, mdp.rewards, mdp.start)
    return mdp, family.policy(family.init(policy_key))


@jax.jit
def _one(mdp, policy):
    """What placeholders do to one MDP: scale, signs and the gain of a clipped sweep."""
    paths = tabular.all_paths(*SHAPE, early_end=True)
    weights = tabular.path_probabilities(mdp, policy, paths)
    plain = tabular.group_advantages(mdp, policy, paths)
    kinds = jnp.stack([plain] + [
        pool_normalised(paths, weights, plain, centre=True, placeholders=flag)
        for flag in (False, True)])  # fmt: skip
    order = tabular.reverse_order(SHAPE[0])
    new = jax.vmap(lambda a: tabular.sequential(policy, paths, weights, a, order, *CLIP))(kinds)
    gains = jax.vmap(lambda p: tabular.performance(mdp, p))(new) - tabular.performance(mdp, policy)
    last = jnp.where(paths.turn_mask[:, -1], weights, 0.0)
    signs = last @ (jnp.sign(kinds[2, :, -1]) != jnp.sign(plain[:, -1])) / last.sum()
    centred = pool_normalised(paths, weights, plain, centre=False)
    counted = pool_normalised(paths, weights, plain, centre=False, placeholders=True)
    scale = (last @ jnp.abs(centred[:, -1])) / (last @ jnp.abs(counted[:, -1]))
    return last.sum(), scale, signs, gains


def placeholders(seed: int, num_mdps: int) -> Findings:
    """Exact batches by how many chains reach the last turn, and a finite batch with junk in it."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 4), num_mdps)
    rows, worst = [], (-1.0, None)
    for termination in TERMINATION:
        drawn = jax.vmap(_draw, (0, None))(keys, termination)
        reach, scale, signs, gains = map(np.asarray, jax.vmap(_one)(*drawn))
        ratio = gains.mean(0) / gains[:, 0].mean()
        rows.append(
            {"termination": termination, "real share": reach.mean(),
             "scale with placeholders": scale.mean(), "sign changed": signs.mean(),
             "clipped gain kept": ratio[2], "clipped gain kept, masked": ratio[1],
             "worst gain": gains[:, 2].min()}
        )  # fmt: skip
        place = int(signs.argmax())
        if signs[place] > worst[0]:
            worst = signs[place], jax.tree.map(lambda leaf, i=place: leaf[i], drawn)
    where = f"{num_mdps} random MDPs, up to {1 - rows[-1]['real share']:.0%} of chains end early"
    claims = [
        at_most("SeeUPO, ragged batches masked: junk at placeholders changes advantages, loss, mean, "
                "std and M by",
                "a batch of 40 chains, 30 placeholder rows and turns", 1, junk_changes(seed), 1e-14),
        at_most("SeeUPO's released code: placeholders counted with advantage 0 change no sign at the "
                "last turn; share",
                f"{where}; mean over them", num_mdps, max(row["sign changed"] for row in rows), 0.01,
                expected=False, counterexample="placeholders"),
    ]  # fmt: skip
    mdp, policy = worst[1]
    arrays = {**mdp_arrays(mdp), "policy": policy}
    counted = Counterexample(
        statement="Placeholders of episodes that have ended, counted with advantage 0 in mean and "
        "standard deviation of the last turn, change the sign of this share of its advantages.",
        arrays=arrays, settings={"kind": "placeholders"}, numbers=placeholder_numbers(arrays),
    )  # fmt: skip
    return Findings(claims=claims, tables={"placeholders": rows},
                    counterexamples={"placeholders": counted})  # fmt: skip


def placeholder_numbers(arrays: dict) -> dict[str, float]:
    """Shares of one MDP: chains that reach the last turn, and signs that change there; gains."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    reach, _, signs, gains = _one(mdp, jnp.asarray(arrays["policy"]))
    names = ("gain, no normalisation", "gain, masked", "gain, placeholders counted")
    found = dict(zip(names, gains, strict=True))
    numbers = {"real share": reach, "sign changed": signs, **found}
    return {name: float(number) for name, number in numbers.items()}


def junk_changes(seed: int) -> float:
    """Largest change of anything a ragged finite batch computes when it is padded with junk."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 4, size=40)
    mask = np.arange(3)[None] < lengths[:, None]
    returns, changes = rng.normal(size=40), 0.3 * rng.normal(size=(40, 3))
    groups = np.repeat(np.arange(8), 5)
    alone = _batch(returns, groups, changes, mask)
    junk = np.where(rng.random((70, 6)) < 0.5, np.nan, 1e6)
    padded_changes, padded_mask = junk.copy(), np.zeros((70, 6), bool)
    padded_changes[:40, :3] = np.where(mask, changes, junk[:40, :3])
    padded_mask[:40, :3] = mask
    padded = _batch(np.append(returns, junk[:30, 0]), np.append(groups, np.full(30, -1)),
                    padded_changes, padded_mask)  # fmt: skip
    pairs = [(alone["loss"], padded["loss"])]
    pairs += [(alone[name], padded[name][:40]) for name in ("advantages", "compound")]
    pairs.append((alone["normalised"], padded["normalised"][:40, :3]))
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def _batch(returns, groups, changes, mask):
    """Advantages, pool normalisation, compound ratios and loss, from the functions of the core."""
    advantages = core.group_relative(returns, groups, 8)
    spread = jnp.broadcast_to(advantages[:, None], mask.shape)
    normalised = jnp.stack(
        [core.whiten(spread[:, h], mask[:, h]) for h in range(mask.shape[1])], axis=1
    )
    turns = np.where(mask, np.arange(mask.shape[1])[None, :], -1)
    log_ratios = core.turn_log_ratios(changes, turns, mask.shape[1], mean=False)
    ratios = core.ratios(log_ratios)
    compound = ratios.prod(1)
    surrogate = core.clipped_surrogate(ratios, normalised, 0.2, 0.2)
    loss = -core.weighted_sum(surrogate, core.token_mean_weights(mask))
    return {"advantages": advantages, "normalised": normalised, "compound": compound, "loss": loss}
