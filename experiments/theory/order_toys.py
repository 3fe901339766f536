"""Parts of `experiments.update_order_tabular`: toys, policy iteration, small steps, partial sweeps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import tabular
from experiments.theory.claims import Counterexample, Findings, at_least, at_most, mdp_arrays
from tabular.orders import sweeps
from tabular.orders.compound import Rule, compound_iteration

EXACT = Rule(1.0, 1.0, jnp.inf, False)
LEARNING_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)


@functools.cache
def repeated(method: str):
    """Performances [N, K + 1] of N MDPs from the uniform policy on, for a schedule [N, K, ...].

    An entry of the schedule is an order, or for "partial" how many of the last turns are updated
    one by one.
    """

    def one(mdp, schedule, clip):
        paths = tabular.all_paths(*mdp.rewards.shape, early_end=False)

        def sweep(policy, entry):
            if method == "RTPO":
                return tabular.siblings(mdp, policy, entry, *clip)
            update = {"SeeUPO": sweeps.group_sweep, "partial": sweeps.partial_sweep,
                      "group PPU, new data a turn": sweeps.regrouped_sweep}[method]  # fmt: skip
            return update(mdp, policy, paths, entry, clip)

        return sweeps.performances(mdp, tabular.uniform_policy(mdp), sweep, schedule)

    return jax.jit(jax.vmap(one, (0, 0, None)))


def stuck_numbers(arrays: dict) -> dict[str, float]:
    """What greedy SeeUPO reaches on one MDP in both orders after ten sweeps."""
    one = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    mdp = jax.tree.map(lambda leaf: leaf[None], one)
    numbers = {"optimum": float(tabular.optimal_values(one)[0] @ one.start)}
    for order, turns in (("reverse", [2, 1, 0]), ("natural", [0, 1, 2])):
        reached = np.asarray(repeated("SeeUPO")(mdp, _repeat(turns)[None], sweeps.GREEDY))[0]
        numbers[f"{order} after 1"] = float(reached[1])
        numbers[f"{order} after 10"] = float(reached[10])
    return numbers


@functools.partial(jax.jit, static_argnames="compound")
def _iterate(instance, schedule, clip, *, compound):
    """Performances of SeeUPO (or without carried ratios) on a toy with two turns and two actions."""
    mdp, policy, contexts = instance
    paths = tabular.all_paths(2, 2, 2, early_end=False)

    def sweep(current, order):
        return sweeps.group_sweep(mdp, current, paths, order, clip, contexts, compound=compound)

    return sweeps.performances(mdp, policy, sweep, schedule)


def _repeat(order, times=10):
    return jnp.asarray(np.tile(np.array(order), (times, 1)))


def hidden_numbers(arrays: dict) -> dict[str, float]:
    """Performance on the toy with a hidden action: before, and after one update of each kind."""
    mdp = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    instance = tabular.Instance(mdp, arrays["policy"], arrays["contexts"])
    reverse, clip = _repeat([1, 0]), sweeps.Clip(0.2, 0.2)
    at_once = _iterate(instance, reverse, sweeps.GREEDY, compound=False)
    return {
        "before": float(at_once[0]),
        "greedy, all at once": float(at_once[1]),
        "clipped, all at once": float(_iterate(instance, reverse, clip, compound=False)[1]),
        "greedy, reverse with M": float(
            _iterate(instance, reverse, sweeps.GREEDY, compound=True)[1]
        ),
        "greedy, natural with M": float(
            _iterate(instance, _repeat([0, 1]), sweeps.GREEDY, compound=True)[1]
        ),
    }


def toys() -> Findings:
    """Both toys: the number of every order."""
    instance = tabular.toy_reverse_order()
    reached = {
        order: np.asarray(_iterate(instance, _repeat(turns), sweeps.GREEDY, compound=True))
        for order, turns in (("reverse", [1, 0]), ("natural", [0, 1]))
    }
    toy = tabular.toy_hidden_action()
    arrays = {**mdp_arrays(toy.mdp), "policy": toy.policy, "contexts": toy.contexts}
    hidden = hidden_numbers(arrays)
    where = "toy_hidden_action"
    halves = np.mean([reached["reverse"][1], reached["natural"][1]])
    claims = [
        at_least("SeeUPO Thm 2, toy_reverse_order, greedy, reverse: optimum 0.9 in one sweep; J",
                 "1 toy", 1, reached["reverse"][1], 0.9 - 1e-12),
        at_most("toy_reverse_order, greedy, natural: stays at 0.5; max |J - 0.5|, 10 sweeps (derived "
                "here)", "1 toy", 10, abs(reached["natural"][1:] - 0.5).max(), 1e-12),
        at_most("SeeUPO, Table 4: a random order is right half the time; |mean J - (0.9 + 0.5) / 2|",
                "both orders", 2, abs(halves - 0.7), 1e-12),
        at_least("SeeUPO without M (Eq. 8): best responses at once do not lower J; dJ", where, 1,
                 hidden["greedy, all at once"] - hidden["before"], -0.01, expected=False,
                 counterexample="hidden_action"),
        at_most("one clipped step of both at once: |J - 0.4992| (derived here)", where, 1,
                abs(hidden["clipped, all at once"] - 0.4992), 1e-12),
        at_least("SeeUPO, Eqs. 6-8: one greedy sweep with M is optimal in both orders; J", where, 2,
                 min(hidden["greedy, reverse with M"], hidden["greedy, natural with M"]),
                 1 - 1e-12),
    ]  # fmt: skip
    counterexample = Counterexample(
        statement="The second turn cannot see the first action. Best responses of both at once "
        "choose the same action and get nothing; carrying the ratio of the turn already updated "
        "gets everything.",
        arrays=arrays, settings={"kind": "hidden"}, numbers=hidden,
    )  # fmt: skip
    return Findings(claims=claims, counterexamples={"hidden_action": counterexample})


def exploring(mdps: tabular.TurnMDP, best: np.ndarray) -> Findings:
    """Policy iteration that looks everywhere: sweeps until the optimum, by order."""
    num_mdps, num_turns = mdps.rewards.shape[:2]
    run = jax.jit(jax.vmap(
        lambda mdp, schedule: sweeps.performances(
            mdp, tabular.uniform_policy(mdp),
            lambda policy, order: sweeps.exploring_sweep(mdp, policy, order), schedule),
        (0, None),
    ))  # fmt: skip
    rows, worst = [], {}
    for name, step in (("reverse", -1), ("natural", 1)):
        gaps = best[:, None] - np.asarray(run(mdps, _repeat(np.arange(num_turns)[::step])))
        needed = (gaps <= 1e-12).argmax(1)
        worst[name] = gaps[:, num_turns].max() if name == "natural" else gaps[:, 1].max()
        rows += [{"order": name, "sweeps": k, "share": float((needed == k).mean())}
                 for k in range(1, num_turns + 1)]  # fmt: skip
    where = f"{num_mdps} random MDPs"
    claims = [
        at_most("policy iteration in every state is optimal after H sweeps in natural order; "
                "J* - J (derived here)", where, num_mdps, worst["natural"], 1e-12),
        at_most("policy iteration is optimal after one reverse sweep (SeeUPO Thm 2); J* - J",
                where, num_mdps, worst["reverse"], 1e-12),
    ]  # fmt: skip
    return Findings(claims=claims, tables={"policy_iteration": rows})


def small_steps(mdps: tabular.TurnMDP) -> Findings:
    """One gradient step a turn: what the order changes, as a function of the step."""
    num_mdps, num_turns = mdps.rewards.shape[:2]
    shape = mdps.rewards.shape[1:]
    paths = tabular.all_paths(*shape, early_end=False)
    family = tabular.per_turn_table(shape)
    start = jnp.zeros(shape)

    def one(mdp, rate):
        new = [sweeps.gradient_sweep(mdp, start, order, rate)
               for order in (jnp.arange(num_turns)[::-1], jnp.arange(num_turns))]  # fmt: skip
        new.append(start + rate * tabular.policy_gradient(mdp, jax.nn.softmax(start)))
        through = compound_iteration(mdp, family, start, paths, EXACT, rate, 1, 0.2, 0.2)
        reached = [tabular.performance(mdp, jax.nn.softmax(logits)) for logits in (*new, start)]
        return jnp.stack(reached), jnp.abs(through.params - new[0]).max()

    run = jax.jit(jax.vmap(jax.vmap(one, (0, None)), (None, 0), 1))
    reached, difference = map(np.asarray, run(mdps, jnp.array(LEARNING_RATES)))
    gain = reached[..., 0] - reached[..., 3]
    effect = abs(reached[..., 0] - reached[..., 2])
    rows = [
        {"learning rate": rate, "gain": gain[:, i].mean(), "order effect": effect[:, i].mean(),
         "order effect / gain": effect[:, i].mean() / gain[:, i].mean()}
        for i, rate in enumerate(LEARNING_RATES)
    ]  # fmt: skip
    slope = np.log2(effect[:, 1].mean() / effect[:, 0].mean())
    where = f"{num_mdps} random MDPs, steps {LEARNING_RATES}"
    claims = [
        at_most("the gradient of SeeUPO's surrogate (Eqs. 4, 6) is that of J at the half-updated "
                "policy; difference of logits", where, difference.size, difference.max(), 1e-12),
        at_most("small steps: reverse and all at once differ by O(step^2); |exponent - 2| (derived "
                "here)", where, num_mdps, abs(slope - 2.0), 0.1),
    ]  # fmt: skip
    return Findings(claims=claims, tables={"small_steps": rows})


def few_turns_numbers(arrays: dict) -> dict[str, float]:
    """What one greedy sweep reaches with the last 0, ..., H of H turns one by one, and the optimum."""
    one = tabular.TurnMDP(*(arrays[name] for name in ("transitions", "rewards", "start")))
    mdp = jax.tree.map(lambda leaf: leaf[None], one)
    numbers = {"optimum": float(tabular.optimal_values(one)[0] @ one.start)}
    for count in range(one.num_turns + 1):
        reached = repeated("partial")(mdp, jnp.full((1, 10), count), sweeps.GREEDY)
        numbers[f"last {count} one by one"] = float(reached[0, 1])
    return numbers


def last_turns(mdps: tabular.TurnMDP, best: np.ndarray, clips: dict, num_sweeps: int) -> Findings:
    """Only the last m turns one by one: what is lost after one greedy sweep and after clipped ones."""
    num_mdps, num_turns = mdps.rewards.shape[:2]
    rows, losses = [], []
    for count in range(num_turns + 1):
        schedule = np.full((num_mdps, num_sweeps), count)
        greedy, slow = (np.asarray(repeated("partial")(mdps, schedule, clips[kind]))
                        for kind in ("greedy", "clipped"))  # fmt: skip
        loss = (best - greedy[:, 1]) / (best - greedy[:, 0])
        left = (best - slow[:, 6]) / (best - slow[:, 0])
        losses.append(loss)
        rows.append({"sequential turns": count, "updates a sweep": min(count + 1, num_turns),
                     "gap after one greedy sweep, mean": loss.mean(),
                     "gap after one greedy sweep, worst": loss.max(),
                     "gap after six clipped sweeps, mean": left.mean()})  # fmt: skip
    where = f"{num_mdps} random MDPs"
    claims = [
        at_most("the last H-1 turns one by one are as good as all: gap after a greedy sweep (derived "
                "here)", where, num_mdps, losses[num_turns - 1].max(), 1e-12),
        at_most("the last H-2 would do: gap after a greedy sweep (derived here)", where, num_mdps,
                losses[num_turns - 2].max(), 0.01, expected=False, counterexample="few_turns"),
    ]  # fmt: skip
    worst = int(losses[num_turns - 2].argmax())
    arrays = mdp_arrays(jax.tree.map(lambda leaf: leaf[worst], mdps))
    few = Counterexample(
        statement="One greedy sweep with only the last H-2 turns one by one, all earlier ones at "
        "once, stops short of the optimum; the last H-1 reach it.",
        arrays=arrays, settings={"kind": "few turns"}, numbers=few_turns_numbers(arrays),
    )  # fmt: skip
    return Findings(claims=claims, tables={"last_turns": rows}, counterexamples={"few_turns": few})


def one_task(mdps: tabular.TurnMDP, clip: sweeps.Clip, num_sweeps: int) -> Findings:
    """Natural order with one task: the compound ratio rescales rows and changes nothing."""
    num_mdps, num_turns = mdps.rewards.shape[:2]
    start = jax.nn.one_hot(0, mdps.start.shape[1], dtype=mdps.start.dtype)
    single = jax.vmap(lambda mdp: dataclasses.replace(mdp, start=start))(mdps)
    natural = np.tile(np.arange(num_turns), (num_mdps, num_sweeps, 1))
    carried = repeated("SeeUPO")(single, natural, clip)
    at_once = repeated("partial")(single, np.zeros((num_mdps, num_sweeps), int), clip)
    claim = at_most("natural order, one task, nothing hidden: SeeUPO with M and all turns at once are "
                    "the same; difference of J (derived here)",
                    f"{num_mdps} random MDPs, {num_sweeps} sweeps",
                    num_mdps, jnp.abs(carried - at_once).max(), 1e-12)  # fmt: skip
    return Findings(claims=[claim])
