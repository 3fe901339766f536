"""SORL, Lemmas 4.1 and 4.2: what clipping takes out of the gradient, and what dividing by it does.

    python -m experiments.clipping_bias                 # about 25 s on two free cores
    python -m experiments.clipping_bias --size tiny     # about 10 s
    python -m experiments.clipping_bias --replay results/clipping_bias/RUN/counterexamples/NAME.json

SORL (arXiv 2511.20718, first published as ST-PPO) replaces the token ratio of PPO by the geometric mean
over a turn, w_k = exp((1 / T_k) sum_t log rho_t) (Eq. 4), and divides the gradient by the norm of the
clipping bias. With m_t the measure, 1 / |y| included, and B_t = 0 where the surrogate is clipped,

    Lemma 4.1   grad J = E[(1 / |y|) sum_k w_k (A^k / T_k) grad log pi(y^k)],   A^k = sum_{t in k} A_t
    Lemma 4.2   grad J_clip = sum m_t w_t A_t g_t + sum m_t w_t (A-hat_t - A_t) g_t - C,
                C = sum m_t (1 - B_t) w_t A-hat_t g_t,   g_t = grad log w_t

that is policy gradient, error of the advantage, and clipping bias. |C| is reported to grow
exponentially before training collapses.

Expected result. Lemma 4.2 holds to rounding at token level, for the geometric turn ratio and for the
ratio of the whole action. Lemma 4.1 holds where nothing is clipped; elsewhere A^k has to be summed over
the tokens that are not clipped (derived here), for the clip decides token by token even where the ratio
is the turn's: left in, the sum can have the wrong sign (`partly_clipped_turn`).

|C| is 0 on data of the current policy, jumps up when the first ratios leave the clip, and levels off:
exponential growth is not supported (`fits.csv` has R^2 of the logarithm against age, of two other
curves, and the slope of the later half over that of the earlier). In expectation it is impossible:
E[w_t | context] <= 1 at every level, so for episodes of equal length

    |C| <= max |A-hat| max |g_t|,   |g_t| <= sqrt(2) for one softmax a token,      (derived here)

whatever the age or horizon. With the paper's 1 / |y| it is flat in the horizon or falls, as 1 / |y|
where only the outcome pays and early turns hardly matter. Growth as in the paper has to come from the
sampling of C, whose variance is that of w_t, or from advantages that grow.

Dividing by |C|: how the paper guards |C| = 0 is not published, so five readings are compared
(`rtpo_jax.core.clipping_triggered_scale`) with SGD and Adam and a critic that errs, at a
moderate step and at one that is too large, and each with two controls that know nothing of C but
have the same mean step length: a constant smaller step, and clipping of the gradient norm. |C|
stays far below 1, so g / max(1, |C|) changes nothing and g / |C| enlarges steps and does harm (to 3
standard errors, claimed from 12 MDPs on; runs that overflow count as 0). The
scale-free reading gains 0.02 of the optimum (two standard errors) at token level with SGD at the
step that is too large, where it makes steps shorter; the better of the two controls gets all but
0.008 of the optimum of that, and elsewhere there is nothing to gain. Adam removes constant factors
anyway. `controls.csv` reports both step lengths: where a reading makes steps longer than the
unscaled run, no control of equal length exists.

Exact: everything; all episodes, or all (turn, state, action), enter with their probabilities. Sampled:
only MDPs, policies and critic errors are drawn; differences in `controls.csv` have standard errors over
MDPs. Differs from the paper: no language model, one set of tabular logits shared by all turns; token
advantages are one-step differences of the critic there (GAE along every episode in the lemmas).
"""

import dataclasses
from typing import Literal

import numpy as np

from experiments import theory
from experiments.theory import clipping_curves, clipping_growth, clipping_identity, clipping_ratios
from experiments.theory.claims import Counterexample, Findings
from paper_figures import clipping as figures


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Options of the experiment.

    Attributes:
      size: preset of the other options.
      seed: of every random draw.
      num_mdps: random MDPs for the lemmas.
      num_growing: random MDPs for the growth of |C|.
      num_learning: random MDPs for learning curves.
      drift: standard deviation of the parameters' move in the lemmas.
      clip: distance of the ratio clip from 1, below 1.
      horizons: turns of the growth study.
      num_updates: largest age of a batch there, in updates.
      step: length of one of those updates.
      iterations: batches of a learning curve.
      epochs: steps on each.
      critic_noise: standard deviation of the critic's errors; rewards are in (0, 1).
    """

    size: Literal["tiny", "cpu"] = "cpu"
    seed: int = 0
    num_mdps: int = 100
    num_growing: int = 16
    num_learning: int = 16
    drift: float = 0.5
    clip: float = 0.2
    horizons: tuple[int, ...] = (2, 4, 8, 16)
    num_updates: int = 30
    step: float = 0.1
    iterations: int = 30
    epochs: int = 8
    critic_noise: float = 0.3

    def __post_init__(self):
        for name, low in (("num_mdps", 2), ("num_growing", 2), ("num_learning", 2),
                          ("num_updates", 20), ("iterations", 2), ("epochs", 2)):  # fmt: skip
            value = getattr(self, name)
            if value < low:
                raise ValueError(f"{name}={value}: give {low} or more")
        for name, low, high in (("clip", 0.0, 1.0), ("drift", 0.0, 10.0), ("step", 0.0, 1.0),
                                ("critic_noise", 0.0, 10.0)):  # fmt: skip
            value = getattr(self, name)
            if not low < value < high:
                raise ValueError(f"{name}={value}: give a number between {low:g} and {high:g}")
        if len(self.horizons) < 2 or min(self.horizons) < 2:
            raise ValueError(f"horizons={self.horizons}: give two or more, each at least 2")


PRESETS = {
    "cpu": Config(),
    "tiny": Config(
        size="tiny", num_mdps=10, num_growing=4, num_learning=4, horizons=(2, 8), iterations=10
    ),
}


def run(config: Config, say: theory.Say = theory.silent) -> Findings:
    """All parts; writes nothing."""
    rng = np.random.default_rng(config.seed)
    say("Lemmas 4.1 and 4.2 on all episodes of random MDPs")
    claims, norms, saved = clipping_identity.claims(rng, config.num_mdps, config.drift, config.clip)
    say("variances of ratios")
    ratio_claims, ratios = clipping_ratios.measure()
    say("growth of the clipping bias with age and horizon")
    growth_claims, ages, fits, growth_saved = clipping_growth.measure(
        rng, config.num_growing, config.horizons, config.num_updates,
        config.clip, config.step,
    )  # fmt: skip
    say("learning with a critic that errs: readings of the normalisation and controls")
    curve_claims, curves, controls = clipping_curves.measure(
        rng, config.num_learning, config.iterations, config.epochs, config.critic_noise
    )
    return Findings(
        claims=[*claims, *ratio_claims, *growth_claims, *curve_claims],
        tables={"norms": norms, "ratios": ratios, "ages": ages, "fits": fits, "curves": curves,
                "controls": controls},
        counterexamples={**saved, **growth_saved},
    )  # fmt: skip


def replay(counterexample: Counterexample) -> dict[str, float]:
    """The numbers of a counterexample computed again from its arrays and settings."""
    if counterexample.settings["kind"] == "ageing":
        return clipping_growth.replay_ageing(counterexample)
    return clipping_identity.replay_turn(counterexample)


EXPERIMENT = theory.Experiment(
    name="clipping_bias", description=__doc__, presets=PRESETS, run=run,
    figures=figures.draw, replay=replay,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(theory.main(EXPERIMENT))
