"""Policies for failures: ``policy`` joins the parts, one module each."""

from policies.resilience.degradation import Degradation
from policies.resilience.ejection import Breaker, Straggler
from policies.resilience.limits import WAIT_SHARE, Limits, PriorityLimits
from policies.resilience.mode import Mode
from policies.resilience.policy import DEFAULT, ResiliencePolicy, ResilienceSpec, SlowStart, Zones
from policies.resilience.regions import AcrossRevisions, Failback, Regions, Serving
from policies.resilience.retries import (
    ENGINE_FAILED,
    REPORTED_BEFORE_WORK,
    Hedging,
    Retries,
    RetryBudget,
    RetryCondition,
)
from policies.resilience.timeouts import Timeouts

__all__ = (
    "DEFAULT",
    "ENGINE_FAILED",
    "REPORTED_BEFORE_WORK",
    "WAIT_SHARE",
    "AcrossRevisions",
    "Breaker",
    "Degradation",
    "Failback",
    "Hedging",
    "Limits",
    "Mode",
    "PriorityLimits",
    "Regions",
    "ResiliencePolicy",
    "ResilienceSpec",
    "Retries",
    "RetryBudget",
    "RetryCondition",
    "Serving",
    "SlowStart",
    "Straggler",
    "Timeouts",
    "Zones",
)
