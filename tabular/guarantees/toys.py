"""Small instances about guarantees: responses made of tokens, shared directions, early ends."""

import jax
import numpy as np

from tabular.guarantees.cells import Case
from tabular.instances import (
    lock,
    lock_policy,
    toy_hidden_action,
    toy_reverse_order,
    uniform_policy,
)
from tabular.mdp import TurnMDP


def token_mdp(
    rewards: np.ndarray, start: np.ndarray, num_tokens: int, length: int, stops: np.ndarray | bool
) -> TurnMDP:
    """One turn whose action is a string of tokens, as the MDP of its tokens.

    At token t the state is prompt * num_tokens^t + prefix, the prefix read in base num_tokens as in
    `tabular.token_tree`; the whole string pays, at its last token.

    Args:
      rewards: [P, num_tokens^length] reward of each string of each prompt; with a leading axis N for
        a stack of MDPs.
      start: [P] or [N, P] probability of each prompt.
      num_tokens: size of the vocabulary.
      length: tokens in a string.
      stops: [] or [N] bool, True if token 0 ends the string; it then counts as if filled up with
        token 0.

    Returns:
      MDP with H = length, S = P num_tokens^(length - 1), A = num_tokens; a stack if given stacks.
    """
    rewards, ends = np.asarray(rewards, float), np.asarray(stops, float)
    stack, num_prompts = rewards.shape[:-2], rewards.shape[-2]
    num_states = num_prompts * num_tokens ** (length - 1)
    shape = (*stack, length, num_states, num_tokens)
    transitions, paid = np.zeros((*shape, num_states)), np.zeros(shape)
    first = np.zeros(num_tokens)
    first[0] = 1.0
    keeps = 1.0 - ends[..., None] * first
    for t in range(length):
        states = np.arange(num_prompts * num_tokens**t)
        filled = rewards.reshape(*stack, len(states), num_tokens, -1)[..., 0]
        last = t == length - 1
        paid[..., t, states, :] = filled if last else filled * (1.0 - keeps)[..., None, :]
        for token in range(0 if last else num_tokens):
            transitions[..., t, states, token, states * num_tokens + token] = keeps[
                ..., token, None
            ]
    first_states = np.zeros((*stack, num_states))
    first_states[..., :num_prompts] = start
    make = jax.vmap(TurnMDP) if stack else TurnMDP
    return make(transitions, paid, first_states)


def table_features(contexts: np.ndarray, num_actions: int) -> np.ndarray:
    """Features [..., H, S, A, H S A], one parameter for every turn, context [..., H, S] and action."""
    num_turns, num_states = contexts.shape[-2:]
    rows = np.arange(num_turns)[:, None] * num_states + np.asarray(contexts)
    entries = rows[..., None] * num_actions + np.arange(num_actions)
    return np.eye(num_turns * num_states * num_actions)[entries]


def shared_features(shape: tuple[int, int, int]) -> np.ndarray:
    """Features [H, S, A, H S A] of `tabular.shared_logits`: the same table at every turn."""
    entries = np.arange(shape[1] * shape[2]).reshape(1, *shape[1:])
    return np.eye(int(np.prod(shape)))[np.broadcast_to(entries, shape)]


def linear_features(directions: np.ndarray) -> np.ndarray:
    """Features [..., H, S, A, H S A] with the given [..., H, S, A, D] and zeros after them."""
    width = int(np.prod(directions.shape[-4:-1]))
    missing = width - directions.shape[-1]
    return np.pad(directions, [(0, 0)] * (directions.ndim - 1) + [(0, missing)])


def two_prompts() -> Case:
    """Two prompts that one shared direction moves apart: dividing by the deviation turns it round.

    Both prompts pay 1 for action 0, one turn. Along the direction theta the first has log-odds
    theta, p_1 = 1/2, and the second -10 theta, p_2 (1 - p_2) = 0.01. The gradient of performance is
    (p_1 (1 - p_1) - 10 p_2 (1 - p_2)) / 2 = +0.075; that of returns over their standard deviation
    (sqrt(p_1 (1 - p_1)) - 10 sqrt(p_2 (1 - p_2))) / 2 = -0.25.
    """
    second = (1.0 - np.sqrt(0.96)) / 2.0
    policy = np.array([[[0.5, 0.5], [second, 1.0 - second]]])
    rewards = np.zeros((1, 2, 2))
    rewards[:, :, 0] = 1.0
    directions = np.zeros((1, 2, 2, 1))
    directions[0, :, 0, 0] = [1.0, -10.0]
    mdp = TurnMDP(np.zeros((1, 2, 2, 2)), rewards, np.array([0.5, 0.5]))
    contexts = np.arange(2)[None, :]
    return Case(mdp, policy, linear_features(directions), contexts, np.zeros((1, 2)))


def two_lengths() -> Case:
    """Two prompts, answers of one and of two tokens, and a direction that trades them off.

    The first token decides: 0 pays 1, at the end of the answer. Along theta its log-odds move by
    theta for the short answer and by -1.5 theta for the long one. The gradient of performance is
    (1 - 1.5) / 8 < 0; with the geometric mean of an answer's ratios it is (1 - 1.5 / 2) / 8 > 0.
    """
    transitions, rewards = np.zeros((2, 2, 2, 2)), np.zeros((2, 2, 2))
    transitions[0, 1] = np.eye(2)
    rewards[0, 0, 0] = 1.0
    rewards[1, 0] = 1.0
    directions = np.zeros((2, 2, 2, 1))
    directions[0, :, 0, 0] = [1.0, -1.5]
    mdp = TurnMDP(transitions, rewards, np.array([0.5, 0.5]))
    contexts = np.tile([0, 1], (2, 1))
    features = linear_features(directions)
    return Case(mdp, np.full((2, 2, 2), 0.5), features, contexts, np.zeros((2, 2)))


def toy_patience() -> TurnMDP:
    """Two turns: 0.9 now and the end, or 1 a turn later, which a discount of 0.8 makes 0.8."""
    transitions, rewards = np.zeros((2, 1, 2, 1)), np.zeros((2, 1, 2))
    transitions[0, 0, 1] = 1.0
    rewards[0, 0, 0] = 0.9
    rewards[1] = 1.0
    return TurnMDP(transitions, rewards, np.ones(1))


def named_cases() -> dict[str, Case]:
    """The named instances of two turns by name, every class with the table of its contexts."""
    opened, patience = lock(2), toy_patience()
    reverse, hidden = toy_reverse_order(), toy_hidden_action()
    parts = {
        "lock": (opened, lock_policy(opened, 0.6), np.array([[0, 1], [0, 1]])),
        "toy_patience": (patience, uniform_policy(patience), np.zeros((2, 1), int)),
        "toy_reverse_order": reverse,
        "toy_hidden_action": hidden,
    }
    return {name: table_case(*part) for name, part in parts.items()}


def table_case(mdp: TurnMDP, policy: jax.Array, contexts: np.ndarray) -> Case:
    """A case without ties between turns and without noise on the values."""
    features = table_features(contexts, mdp.num_actions)
    return Case(mdp, policy, features, contexts, np.zeros(contexts.shape))


def padded(case: Case, num_turns: int, num_states: int) -> Case:
    """The same case with turns and states that nothing reaches: it pays 0 there.

    Raises ValueError if the case is larger than that.
    """
    here = case.policy.shape
    if num_turns < here[0] or num_states < here[1]:
        raise ValueError(
            f"num_turns, num_states = {num_turns}, {num_states}: give {here[:2]} or more"
        )
    more = [(0, num_turns - here[0]), (0, num_states - here[1])]

    def pad(array, axes, value=0.0):
        return np.pad(array, more + [(0, 0)] * axes, constant_values=value)

    transitions = np.pad(case.mdp.transitions, [*more, (0, 0), more[1]])
    mdp = TurnMDP(transitions, pad(case.mdp.rewards, 1), np.pad(case.mdp.start, more[1]))
    width = num_turns * num_states * here[2] - case.features.shape[-1]
    features = np.pad(pad(case.features, 2), [(0, 0)] * 3 + [(0, width)])
    contexts = np.tile(np.arange(num_states), (num_turns, 1))
    contexts[: here[0], : here[1]] = case.contexts
    return Case(mdp, pad(case.policy, 1, 1.0 / here[2]), features, contexts, pad(case.noise, 0))


def trimmed(case: Case, states: np.ndarray) -> Case:
    """The same case with the named states only, which nothing may leave; contexts are renumbered."""
    transitions = case.mdp.transitions[:, states][:, :, :, states]
    mdp = TurnMDP(transitions, case.mdp.rewards[:, states], case.mdp.start[states])
    seen = np.asarray(case.contexts)[:, states]
    contexts = (seen[:, :, None] == seen[:, None, :]).argmax(-1)
    features, noise = case.features[:, states], case.noise[:, states]
    return Case(mdp, case.policy[:, states], features, contexts, noise)
