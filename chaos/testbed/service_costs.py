"""Token costs of simulated engines that give the experiment's mean service time. Pure."""

from typing import Final

from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_model import LoadSpec

_SPARE_TOKENS: Final = 4096

PREFILL_SHARE: Final = 0.1
"""Share of the mean service time: 0.5 s is 0.05 s of prefill and 45 tokens of 10 ms."""


def token_costs_s(experiment: Experiment) -> tuple[float, float]:
    """Time per prompt token, and per answer token after the first, at slowness 1."""
    load = experiment.spec.load
    prompt = (load.prompt_tokens.shortest + load.prompt_tokens.longest) / 2
    if load.conversations is not None:
        prompt *= load.conversations.mean_turns
    later = (load.output_tokens.shortest + load.output_tokens.longest) / 2 - 1
    share = PREFILL_SHARE if later > 0 else 1.0
    return share * experiment.service_s / prompt, (1 - share) * experiment.service_s / later if later > 0 else 0.0


def longest_context_tokens(experiment: Experiment) -> int:
    """Context length of simulated engines; the KV cache of a prefill engine holds as many tokens.

    Room for one longest request, so that KV caches that none fetches fill it within seconds.
    """
    load = experiment.spec.load
    return 2 * _longest_prompt(load) + load.output_tokens.longest + _SPARE_TOKENS


def kv_transfer_token_s(experiment: Experiment) -> float:
    """Time of one prompt token on the way from a prefill engine; 0 if transfers take no time."""
    transfer = experiment.spec.topology.kv_transfer
    return 0.0 if transfer is None else transfer.token_s


def longest_request_s(experiment: Experiment) -> float:
    """Longest slot time of a healthy request: the longest answer on the slowest engine."""
    prefill_s, token_s = token_costs_s(experiment)
    load = experiment.spec.load
    longest = prefill_s * _longest_prompt(load) + token_s * (load.output_tokens.longest - 1)
    return load.largest_times * longest * _slowness(experiment)


def _longest_prompt(load: LoadSpec) -> int:
    turns = 1 if load.conversations is None else load.conversations.turns
    return turns * load.prompt_tokens.longest


def slowest_token_s(experiment: Experiment) -> float:
    """Time per answer token after the first, on the slowest engine."""
    return token_costs_s(experiment)[1] * _slowness(experiment)


def _slowness(experiment: Experiment) -> float:
    return max((one.slowness for one in experiment.engines), default=1.0)
