"""Every code of our own that a scenario can be answered with. What is wrong with a file or with the shape of a
document has the codes of policies (``policies.codes``); these are for what scenarios alone can get wrong.

``docs/chaos.md`` is made from this table. Codes are stable: one that is no longer used is not given out again.
Examples leave out what does not matter: a scenario's heading, title and incident.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.codes.code import Code

_ALL: Final = (
    Code(
        code="SC001",
        title="unknown zone",
        meaning="Engines, proxies or a target name a zone that the topology does not list.",
        example="faults:\n- {fault: {kind: crash}, target: {zone: b}, at: 8s, lasts: 9s}\n",
        fix="Add the zone to the topology, or name one that is there.",
    ),
    Code(
        code="SC002",
        title="no such engine or proxy",
        meaning="Engines and proxies are counted from 0 in the order of the topology's groups.",
        example="faults:\n- {fault: {kind: crash}, target: {engine: 8}, at: 8s, lasts: 9s}\n",
        fix="Name a smaller number, or let the topology have more.",
    ),
    Code(
        code="SC003",
        title="target the fault cannot have",
        meaning="A fault of engines was told to hit a proxy, or one of the control plane to hit an engine.",
        example="faults:\n- {fault: {kind: hang}, target: {proxy: 0}, at: 8s, lasts: 9s}\n",
        fix="Take the target out, or use a fault for that sort of target.",
    ),
    Code(
        code="SC004",
        title="nobody left to hit",
        meaning="What the target says, taken together, picks nobody, or fewer than `count`.",
        example="faults:\n- {fault: {kind: crash}, target: {engine: 3, skip: 1}, at: 8s, lasts: 9s}\n",
        fix="Say less, or a smaller count or skip.",
    ),
    Code(
        code="SC005",
        title="outside the scenario's time",
        meaning="Something begins when the requests are over, or is healed after that, when nobody sees it heal.",
        example="lasts: 30s\nfaults:\n- {fault: {kind: crash}, at: 20s, lasts: 15s}\n",
        fix="Begin or end it earlier, or let the scenario last longer.",
    ),
    Code(
        code="SC006",
        title="two faults on one thing at once",
        meaning="One fault would undo the other: both set the same switch of the same target.",
        example=(
            "faults:\n- {fault: {kind: crash}, target: {engine: 1}, at: 8s, lasts: 9s}\n"
            "- {fault: {kind: hang}, target: {engine: 1}, at: 12s, lasts: 9s}\n"
        ),
        fix="Let one end before the other begins, or use `skip` to have them hit others.",
    ),
    Code(
        code="SC007",
        title="more than the blast radius",
        meaning="At some moment more would be broken than the scenario allows itself. Nothing is started.",
        example=(
            "blastRadius: {enginesPercent: 25}\n"
            "faults:\n- {fault: {kind: crash}, target: {fraction: 0.5}, at: 8s, lasts: 9s}\n"
        ),
        fix="Hit fewer, or at other times, or allow more.",
    ),
    Code(
        code="SC008",
        title="two settings that exclude each other",
        meaning="Both say the same thing in different ways, or one has no effect beside the other.",
        example="faults:\n- {fault: {kind: crash}, target: {fraction: 0.5, count: 2}, at: 8s, lasts: 9s}\n",
        fix="Keep one of the two.",
    ),
    Code(
        code="SC009",
        title="not as many as there are",
        meaning="A list that has one item for each proxy has more or fewer.",
        example="topology: {proxies: [{count: 2}]}\nload:\n  turns:\n  - {at: 5s, demand: [1]}\n",
        fix="Write one share for each proxy, in the order of the topology.",
    ),
    Code(
        code="SC010",
        title="nothing there to break",
        meaning="The fault is of something that this topology does without, such as agents or simulated engines.",
        example="topology: {engine: vllm}\nfaults:\n- {fault: {kind: hang}, at: 8s, lasts: 9s}\n",
        fix="Change the topology, or take another fault.",
    ),
    Code(
        code="SC011",
        title="nothing there to judge",
        meaning="The hypothesis asks for something that this scenario cannot show.",
        example="load: {streamingPercent: 0}\nhypothesis: {firstTokenP99: 1s}\n",
        fix="Let the load or the faults show it, or take it out.",
    ),
    Code(
        code="SC012",
        title="name used twice",
        meaning="Two scenarios, faults or zones have the same name; reports could not tell them apart.",
        example=(
            "faults:\n- {name: out, fault: {kind: crash}, target: {engine: 1}, at: 8s, lasts: 9s}\n"
            "- {name: out, fault: {kind: crash}, target: {engine: 2}, at: 8s, lasts: 9s}\n"
        ),
        fix="Give one of them another name.",
    ),
    Code(
        code="SC013",
        title="trace cannot be used",
        meaning="The file with the arrivals is missing, or a line of it is not understood.",
        example="load: {trace: arrivals.csv}\n",
        fix="Correct the path, which is relative to the scenario's file, or the line.",
    ),
    Code(
        code="SC014",
        title="no such suite or scenario",
        meaning="What was asked for is neither a file nor the name of a suite or scenario of the library.",
        situation="`switchgear-chaos verify --suite quik`",
        fix="`switchgear-chaos scenarios` lists them.",
    ),
)

SCENARIO_CODES: Final[Mapping[str, Code]] = MappingProxyType({one.code: one for one in _ALL})
"""Every one of them, by its name."""
