"""Multi-hop search: follow a chain of relations through a random map, one query a turn.

Question `d6uysr?`: start at entity d6 and follow relations u, y, s, r. Action `Qd6u` asks the map
and is replied to by an entity, `>e6.`; `Ae2` answers and ends the episode.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rtpo_jax.envs.chance import Chance, pick, pick_other, uniform
from rtpo_jax.envs.checks import check_choice, check_integer, check_probability, check_seed
from rtpo_jax.envs.episode import (
    FAILED_REPLY,
    MALFORMED_REPLY,
    Episode,
    check_action,
    check_running,
    fork_state,
    step_to,
)
from rtpo_jax.envs.protocol import Outcome, Step

ENTITIES = tuple(letter + digit for letter in "abcde" for digit in "01234567")
RELATIONS = "klmnopqrstu"
SYSTEMATIC_MISTAKES = {"k": "n", "l": "o", "m": "p"}
_ENTITY_SET = frozenset(ENTITIES)


def related_entity(seed: int, entity: str, relation: str) -> str:
    """Return where `relation` leads from `entity` in the random map of the task with this seed."""
    return pick(ENTITIES, "map", seed, entity, relation)


def remaining_question(question: str, observations: Sequence[str]) -> str:
    """Return what is left to ask, as a question: `d6uysr?` after the reply `>e6.` is `e6ysr?`.

    A rule for summarising a history. Every reply that shows an entity counts as the next hop of
    the chain, whatever was asked for; other replies change nothing. Empty before the first such
    reply, when nothing has changed yet.
    """
    shown = [text[1:-1] for text in observations if text[1:-1] in _ENTITY_SET]
    return f"{shown[-1]}{question[2 + len(shown) :]}" if shown else ""


@dataclass(frozen=True, slots=True)
class LookupTask:
    """A chain of distinct relations from a start entity; `answer` is where it ends."""

    seed: int
    start: str
    relations: str
    answer: str


@dataclass(frozen=True, slots=True)
class LookupState:
    """Where an episode stands.

    path: the chain's entities as far as replies have shown them, the start first. Replies are
        believed; asking a hop of the path again replaces what was believed from there on.
    shown: the entity of the last reply that showed one, the start before that.
    doomed: whether a fatal error was made, after which no answer succeeds.
    """

    task: LookupTask
    episode: Episode
    path: tuple[str, ...]
    shown: str
    doomed: bool = False


@dataclass(frozen=True)
class Lookup:
    """Multi-hop search with 40 entities, 11 relations and a fresh random map for every task.

    num_hops: length of the chain, 1 to 11. num_turns = num_hops + 1 + slack_turns.
    slack_turns: turns to spare for repairs.
    errors: "repairable": a wrong query costs a turn. "fatal": from the first malformed action or
        the first query that is not the next hop of the path, the episode is doomed: it goes on as
        usual until it is answered or out of turns, shows nothing of it, and cannot succeed.
    chance: a failed query is replied to by `>~.`, a noisy one by another entity.

    Reward: 1 at the end if the answer is the chain's end and the episode is not doomed, else 0,
    plus luck. Malformed actions cost a turn and are replied to by `>!.`. An episode that is out
    of turns ends unanswered. Raises ValueError for settings out of range.
    """

    num_hops: int = 4
    slack_turns: int = 0
    errors: str = "repairable"
    chance: Chance = field(default_factory=Chance)

    def __post_init__(self) -> None:
        check_integer("num_hops", self.num_hops, 1, len(RELATIONS))
        check_integer("slack_turns", self.slack_turns, 0)
        check_choice("errors", self.errors, ("repairable", "fatal"))

    @property
    def num_turns(self) -> int:
        """Largest number of turns of an episode: one per hop, the answer, and the slack."""
        return self.num_hops + 1 + self.slack_turns

    @property
    def symbols(self) -> str:
        """Characters of questions, well-formed actions and observations, each once."""
        return "abcde01234567" + RELATIONS + "QA?>.!~"

    def make_task(self, seed: int) -> LookupTask:
        """Return the task with this seed: start and distinct relations drawn uniformly."""
        seed = check_seed(seed)
        generator = random.Random(f"lookup:{seed}")
        start = generator.choice(ENTITIES)
        relations = "".join(generator.sample(RELATIONS, self.num_hops))
        entity = start
        for relation in relations:
            entity = related_entity(seed, entity, relation)
        return LookupTask(seed=seed, start=start, relations=relations, answer=entity)

    def reset(self, task: LookupTask) -> tuple[LookupState, str]:
        """Return the first state and the question, e.g. `d6uysr?`."""
        state = LookupState(
            task=task, episode=Episode(stream=task.seed), path=(task.start,), shown=task.start
        )
        return state, f"{task.start}{task.relations}?"

    def step(self, state: LookupState, action_text: str) -> Step:
        """Return what a query, an answer or a malformed action leads to."""
        check_action(state.episode, action_text)
        verb, entity, relation = action_text[:1], action_text[1:3], action_text[3:]
        if entity in _ENTITY_SET and verb == "Q" and len(relation) == 1 and relation in RELATIONS:
            return self._query(state, entity, relation)
        if entity in _ENTITY_SET and verb == "A" and not relation:
            success = entity == state.task.answer and not state.doomed
            episode = state.episode.next_turn(
                self.chance, self.num_turns, finished=True, success=success
            )
            return step_to(replace(state, episode=episode), "")
        episode = state.episode.next_turn(self.chance, self.num_turns, malformed=1)
        doomed = state.doomed or self.errors == "fatal"
        return step_to(replace(state, episode=episode, doomed=doomed), MALFORMED_REPLY)

    def _query(self, state: LookupState, entity: str, relation: str) -> Step:
        task, path, turn = state.task, state.path, state.episode.turn
        hop = task.relations.find(relation)
        on_path = 0 <= hop < len(path) and path[hop] == entity
        is_next = on_path and hop == len(path) - 1
        doomed = state.doomed or (self.errors == "fatal" and not is_next)
        episode = state.episode.next_turn(self.chance, self.num_turns, tool_calls=1)
        state = replace(state, episode=episode, doomed=doomed)
        if self.chance.tool_fails(episode.stream, turn):
            return step_to(state, FAILED_REPLY)
        reply = related_entity(task.seed, entity, relation)
        if self.chance.reply_is_wrong(episode.stream, turn):
            reply = pick_other(ENTITIES, reply, episode.stream, turn, "untruth")
        if on_path and path[hop + 1 : hop + 2] != (reply,):
            path = (*path[: hop + 1], reply)
        return step_to(replace(state, path=path, shown=reply), f">{reply}.")

    def fork(self, state: LookupState, seed: int) -> LookupState:
        """Return the same state with everything undecided to be drawn from stream `seed`."""
        return fork_state(state, seed)

    def outcome(self, state: LookupState) -> Outcome:
        """Return success and counts of a running or ended state."""
        return state.episode.outcome

    def demonstrate(
        self, state: LookupState, seed: int, *, error_rate: float, systematic_rate: float
    ) -> str:
        """Return the expert's action: ask the next hop of the path, answer when it is complete.

        An expert with too few turns left to repair a mistake goes on as if there had been none: it
        asks the hop that is due from the entity it was last shown, and answers in the last turn.

        Random mistake: a query with one of the other ten relations, or an answer with one of the
        other 39 entities. Systematic mistake: relations k, l, m are asked for as n, o, p.
        """
        check_probability("error_rate", error_rate)
        check_probability("systematic_rate", systematic_rate)
        check_running(state.episode)
        turn, relations = state.episode.turn, state.task.relations
        hop, entity = len(state.path) - 1, state.path[-1]
        due = len(relations) + 1 - (self.num_turns - turn)
        if hop < due:
            hop, entity = due, state.shown
        mistaken = uniform("demo", seed, turn, "mistaken") < error_rate
        if hop == len(relations):
            answer = pick_other(ENTITIES, entity, "demo", seed, turn) if mistaken else entity
            return f"A{answer}"
        relation = relations[hop]
        misled = uniform("demo", seed, turn, "misled") < systematic_rate
        if misled and relation in SYSTEMATIC_MISTAKES:
            relation = SYSTEMATIC_MISTAKES[relation]
        elif mistaken:
            relation = pick_other(RELATIONS, relation, "demo", seed, turn)
        return f"Q{entity}{relation}"
