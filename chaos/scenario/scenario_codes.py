"""Error codes of scenarios. Errors in a file or in a document's structure use the codes in ``policies.codes``.

``docs/chaos.md`` is generated from this table. Codes are stable: a retired one is never reused. Examples omit the
scenario's metadata, title and incident.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.codes.code import Code

_ALL: Final = (
    Code(
        code="SC001",
        title="unknown zone or region",
        meaning="Engines, proxies, a region or a target name a zone or region that is not in the topology.",
        example="faults:\n- {fault: {kind: crash}, target: {zone: b}, at: 8s, lasts: 9s}\n",
        fix="Add the zone or region to the topology, or use one of the topology's.",
    ),
    Code(
        code="SC002",
        title="unknown engine, proxy or fallback",
        meaning="The index is too high, or there is no such pool. Engines, proxies and fallback pools count from "
        "0, in topology order.",
        example="faults:\n- {fault: {kind: crash}, target: {engine: 8}, at: 8s, lasts: 9s}\n",
        fix="Use a lower index, or add engines, proxies or fallbacks to the topology.",
    ),
    Code(
        code="SC003",
        title="wrong target for this fault",
        meaning="The target does not match the fault, e.g. a proxy as target of an engine fault.",
        example="faults:\n- {fault: {kind: hang}, target: {proxy: 0}, at: 8s, lasts: 9s}\n",
        fix="Remove the target, or use a fault for that kind of target.",
    ),
    Code(
        code="SC004",
        title="no matching target",
        meaning="The target's fields together match nothing, or fewer than `count`.",
        example="faults:\n- {fault: {kind: crash}, target: {engine: 3, skip: 1}, at: 8s, lasts: 9s}\n",
        fix="Remove a field, or lower `count` or `skip`.",
    ),
    Code(
        code="SC005",
        title="outside the scenario's duration",
        meaning="A fault or load change begins or ends after the last request, so its effect cannot be measured.",
        example="lasts: 30s\nfaults:\n- {fault: {kind: crash}, at: 20s, lasts: 15s}\n",
        fix="Begin or end it earlier, or raise `lasts` of the scenario.",
    ),
    Code(
        code="SC006",
        title="overlapping faults on one target",
        meaning="Two faults set the same control of one target, so one would undo the other.",
        example=(
            "faults:\n- {fault: {kind: crash}, target: {engine: 1}, at: 8s, lasts: 9s}\n"
            "- {fault: {kind: hang}, target: {engine: 1}, at: 12s, lasts: 9s}\n"
        ),
        fix="End one before the other begins, or use `skip` to hit other targets.",
    ),
    Code(
        code="SC007",
        title="blast radius exceeded",
        meaning="At some point more would be broken than `blastRadius` allows. Nothing is started.",
        example=(
            "blastRadius: {enginesPercent: 25}\n"
            "faults:\n- {fault: {kind: crash}, target: {fraction: 0.5}, at: 8s, lasts: 9s}\n"
        ),
        fix="Hit fewer targets, move the faults apart, or raise `blastRadius`.",
    ),
    Code(
        code="SC008",
        title="mutually exclusive settings",
        meaning="Both set the same thing, or one has no effect with the other.",
        example="faults:\n- {fault: {kind: crash}, target: {fraction: 0.5, count: 2}, at: 8s, lasts: 9s}\n",
        fix="Keep one of the two.",
    ),
    Code(
        code="SC009",
        title="wrong number of items",
        meaning="A list needs exactly one item per proxy.",
        example="topology: {proxies: [{count: 2}]}\nload:\n  turns:\n  - {at: 5s, demand: [1]}\n",
        fix="Write one share per proxy, in topology order.",
    ),
    Code(
        code="SC010",
        title="fault needs a missing part",
        meaning="The topology lacks what the fault breaks, such as agents or simulated engines.",
        example="topology: {engine: vllm}\nfaults:\n- {fault: {kind: hang}, at: 8s, lasts: 9s}\n",
        fix="Change the topology, or use another fault.",
    ),
    Code(
        code="SC011",
        title="hypothesis cannot be tested",
        meaning="The scenario produces no data for this field of the hypothesis.",
        example="load: {streamingPercent: 0}\nhypothesis: {firstTokenP99: 1s}\n",
        fix="Change the load or the faults, or remove the field.",
    ),
    Code(
        code="SC012",
        title="duplicate name",
        meaning="Two scenarios, faults, groups, zones or regions share a name, or a zone is in two regions.",
        example=(
            "faults:\n- {name: out, fault: {kind: crash}, target: {engine: 1}, at: 8s, lasts: 9s}\n"
            "- {name: out, fault: {kind: crash}, target: {engine: 2}, at: 8s, lasts: 9s}\n"
        ),
        fix="Rename one of them.",
    ),
    Code(
        code="SC013",
        title="unusable arrival trace",
        meaning="The arrivals file is missing, or one of its lines is invalid.",
        example="load: {trace: arrivals.csv}\n",
        fix="Fix the line, or the path, which is relative to the scenario file.",
    ),
    Code(
        code="SC014",
        title="unknown suite or scenario",
        meaning="The argument is neither a file nor a suite or scenario of the library.",
        situation="`switchgear-chaos verify --suite quik`",
        fix="`switchgear-chaos get scenarios` lists them.",
    ),
)

SCENARIO_CODES: Final[Mapping[str, Code]] = MappingProxyType({one.code: one for one in _ALL})
"""All codes by name."""
