"""Codes of errors in policy files."""

# ruff: noqa: E501 - a table of prose and examples

from typing import Final

from policies.codes.code import Code, as_file

_FILES: Final = (
    Code(
        code="SG001",
        title="no such file or folder",
        meaning="A given path does not exist, or is a link to a missing target.",
        situation="`switchgear validate -f polices/`",
        fix="Correct the path.",
    ),
    Code(
        code="SG002",
        title="unreadable file",
        meaning="The file system refuses to read it: missing permissions, or a failing disk or mount.",
        situation="`chmod 000 policies/pool.yaml`",
        fix="Correct the permissions of the file and its folders.",
    ),
    Code(
        code="SG003",
        title="not a regular file",
        meaning="A pipe, socket or device. It is not opened, because reading it could block.",
        situation="`mkfifo policies/pool.yaml`",
        fix="Name a file or a folder, or remove it from the folder.",
    ),
    Code(
        code="SG004",
        title="symbolic link loop",
        meaning="A symbolic link leads to itself or to a folder that contains it.",
        situation="`ln -s . policies/again`",
        fix="Remove the link.",
    ),
    Code(
        code="SG005",
        title="file too large",
        meaning="The file exceeds 8 MiB, enough for some hundred thousand engines. The rest is not read.",
        situation="a log named `dump.yaml`",
        fix="Split it by pool, or move files that are not policies out of the folder.",
    ),
    Code(
        code="SG006",
        title="no policies",
        meaning="The folder has no policy file, or the files have no document.",
        situation="an empty folder, or only empty files",
        fix="Correct the path. Policy files are named *.yaml, *.yml or *.json; hidden files are skipped.",
    ),
    Code(
        code="SG007",
        title="too many files",
        meaning="The folder has more than 10,000 policy files: probably the wrong folder.",
        situation="`switchgear validate -f /`",
        fix="Name the folder with the policies.",
    ),
)

_TEXT: Final = (
    Code(
        code="SG010",
        title="not UTF-8",
        meaning="The file has another encoding. A byte order mark is allowed, also for UTF-16.",
        situation="a comment with an accent, saved as Latin-1",
        fix="Save the file as UTF-8.",
    ),
    Code(
        code="SG011",
        title="invalid YAML",
        meaning="The text is not YAML from this place on. Reading continues at the next `---`.",
        example=as_file("kind: EnginePool\nspec: {model: llama\n"),
        fix="Correct brackets, quotes or indentation in this line or the one above.",
    ),
    Code(
        code="SG012",
        title="tab indentation",
        meaning="YAML allows only spaces for indentation.",
        example=as_file("kind: EnginePool\nspec:\n\tmodel: llama\n"),
        fix="Replace tabs with spaces, two per level.",
    ),
    Code(
        code="SG013",
        title="duplicate field",
        meaning="A block has the same field twice. Parsers disagree on which one wins.",
        example=as_file("kind: EnginePool\nspec:\n  model: llama\n  model: qwen\n"),
        fix="Remove one.",
    ),
    Code(
        code="SG014",
        title="field name is not text",
        meaning="Names of fields and labels are text; without quotes `8080` is a number.",
        example=as_file("kind: EnginePool\nmetadata: {name: chat, labels: {8080: open}}\nspec: {model: llama}\n"),
        fix="Put the name in quotes.",
    ),
    Code(
        code="SG015",
        title="invalid alias",
        meaning="An alias has no anchor above it, repeats itself, or aliases multiply beyond 10 MB of text.",
        example=as_file("kind: EnginePool\nspec: {model: llama, endpoints: *engines}\n"),
        fix="Write &name before the value to repeat, above the alias.",
    ),
    Code(
        code="SG016",
        title="nesting too deep",
        meaning="The document has more than 64 levels; a policy has eight.",
        example=as_file("kind: EnginePool\nspec: " + "[" * 70 + "]" * 70 + "\n"),
        fix="Close the open brackets.",
    ),
    Code(
        code="SG017",
        title="unsupported tag",
        meaning="YAML tags such as !!binary or !include are not supported.",
        example=as_file("kind: EnginePool\nspec: {model: !secret llama}\n"),
        fix="Remove the tag.",
    ),
    Code(
        code="SG018",
        title="invalid merge",
        meaning="`<<` takes an alias of a block, or a list of such aliases.",
        example=as_file("kind: EnginePool\nspec:\n  <<: llama\n  model: llama\n"),
        fix="Write &name before a block, and merge it with `<<: *name`.",
    ),
)

_DOCUMENTS: Final = (
    Code(
        code="SG020",
        title="not a policy document",
        meaning="A document is a block with the fields apiVersion, kind, metadata and spec.",
        example=as_file("- kind: EnginePool\n"),
        fix="Remove the leading dash or the stray `---`.",
    ),
    Code(
        code="SG021",
        title="unknown apiVersion",
        meaning="apiVersion is missing, or this Switchgear does not support it.",
        example=as_file(
            "apiVersion: switchgear.dev/v2\nkind: EnginePool\nmetadata: {name: chat}\nspec: {model: m}\n"
        ),
        fix="Write `apiVersion: switchgear.dev/v1beta1` or `switchgear.dev/v1alpha1`; move documents of other tools to another folder.",
    ),
    Code(
        code="SG022",
        title="unknown kind",
        meaning="kind is missing or unknown.",
        example=as_file("apiVersion: switchgear.dev/v1alpha1\nkind: EnginPool\nmetadata: {name: chat}\n"),
        fix="Write EnginePool, ModelRoute or ResiliencePolicy.",
    ),
    Code(
        code="SG023",
        title="unknown field",
        meaning="No such field exists. It is refused, because a misspelled limit would be off.",
        example=as_file("kind: ResiliencePolicy\nspec: {limits: {max_wait: 2s}}\n"),
        fix="Correct the name; `switchgear explain` lists all fields.",
    ),
    Code(
        code="SG024",
        title="required field missing",
        meaning="A field without a default is missing.",
        example=as_file("kind: EnginePool\nspec: {endpoints: [{address: 10.0.0.1}]}\n"),
        fix="Add the field.",
    ),
    Code(
        code="SG025",
        title="wrong type",
        meaning="The value has the wrong type: text instead of a number, one value instead of a list. `yes` and `on` are text.",
        example=as_file("kind: ResiliencePolicy\nspec: {hedging: {enabled: yes}}\n"),
        fix="Write a value of the expected type; quotes make text, unquoted digits a number.",
    ),
    Code(
        code="SG026",
        title="value not allowed",
        meaning="The value is out of range, not one of the choices, or malformed.",
        example=as_file("kind: ResiliencePolicy\nspec: {retries: {attempts: 99}}\n"),
        fix="Write an allowed value.",
    ),
    Code(
        code="SG027",
        title="invalid duration",
        meaning="Durations have a unit: 250ms, 2s, 15m, 1m30s.",
        example=as_file("kind: ResiliencePolicy\nspec: {limits: {maxWait: 5}}\n"),
        fix="Add the unit.",
    ),
    Code(
        code="SG028",
        title="more problems",
        meaning="The file has more than a hundred problems; the others are not shown.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: m\n  endpoints: [" + "{address: 10.0.0.1}, " * 101 + "]\n"
        ),
        fix="Fix the first ones: they usually share one cause.",
    ),
    Code(
        code="SG029",
        title="indirect apiVersion",
        meaning="The file is valid, but `switchgear convert` cannot rewrite it: apiVersion is an alias, is merged, or is written with escapes.",
        situation="`apiVersion: *version`, with the anchor in an annotation",
        fix="Write the version out in each document.",
    ),
)

_RELATIONS: Final = (
    Code(
        code="SG030",
        title="duplicate name",
        meaning="Two documents of one kind have the same name. Both locations are shown.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: a}\n---\n"
            "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: b}\n"
        ),
        fix="Rename or remove one.",
    ),
    Code(
        code="SG031",
        title="unknown pool",
        meaning="A route or policy names a pool that no file declares.",
        example=as_file("kind: ResiliencePolicy\nmetadata: {name: strict}\nspec: {pools: [chatt]}\n"),
        fix="Correct the name, or add the file of the pool.",
    ),
    Code(
        code="SG032",
        title="pool with two policies",
        meaning="A pool takes one policy besides the policy named default; otherwise the order of files would decide.",
        example=as_file(
            "kind: ResiliencePolicy\nmetadata: {name: a}\nspec: {pools: [chat]}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: b}\nspec: {pools: [chat]}\n"
        ),
        fix="Merge the two, or remove the pool from one.",
    ),
    Code(
        code="SG033",
        title="policy without pools",
        meaning="A policy not named default lists no pools.",
        example=as_file("kind: ResiliencePolicy\nmetadata: {name: strict}\nspec: {retries: {attempts: 1}}\n"),
        fix="List pools, or name it default.",
    ),
    Code(
        code="SG034",
        title="default policy with pools",
        meaning="The policy named default applies to every pool and takes no list.",
        example=as_file("kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {pools: [chat]}\n"),
        fix="Remove the list, or rename the policy.",
    ),
    Code(
        code="SG035",
        title="duplicate engine",
        meaning="Two endpoints of a pool have the same address and port, or the same name.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.1, port: 8000}\n"
        ),
        fix="Remove one.",
    ),
    Code(
        code="SG036",
        title="port with two addresses",
        meaning="Routes of one port share one Envoy listener, which has one address. Its other options must be the same in all of these routes, too.",
        example=as_file(
            "kind: ModelRoute\nmetadata: {name: a}\nspec: {listener: {port: 80}, match: {model: a}, pools: [{pool: chat}]}\n"
            "---\nkind: ModelRoute\nmetadata: {name: b}\n"
            "spec: {listener: {port: 80, address: 127.0.0.1}, match: {model: b}, pools: [{pool: chat}]}\n"
        ),
        fix="Use the same `listener`, or different ports.",
    ),
    Code(
        code="SG037",
        title="identical matches",
        meaning="Two routes of one port match the same requests; only one can take effect.",
        example=as_file(
            "kind: ModelRoute\nmetadata: {name: a}\nspec: {listener: {port: 80}, pools: [{pool: chat}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: b}\nspec: {listener: {port: 80}, pools: [{pool: chat}]}\n"
        ),
        fix="Change one match, or merge the routes.",
    ),
    Code(
        code="SG038",
        title="no weight",
        meaning="All pools of a route have weight 0.",
        example=as_file("kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat, weight: 0}]}\n"),
        fix="Set a weight above 0 for at least one pool.",
    ),
    Code(
        code="SG039",
        title="duplicate pool",
        meaning="A route or policy lists the same pool twice: as a target, as a fallback, or as both.",
        example=as_file("kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}, {pool: chat}]}\n"),
        fix="Keep one entry; add up the weights of targets.",
    ),
    Code(
        code="SG040",
        title="contradiction in a document",
        meaning="Two fields of a document exclude each other.",
        example=as_file("kind: EnginePool\nspec: {model: llama, serviceTime: 5s, longestServiceTime: 2s}\n"),
        fix="Correct one of them.",
    ),
    Code(
        code="SG041",
        title="contradiction between layers",
        meaning="Two fields exclude each other once the policies of a pool are merged: Envoy would refuse them, or they would have no effect.",
        example=as_file(
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {retries: {backoff: {base: 1s}}}\n"
        ),
        fix="Set both fields in the same policy.",
    ),
    Code(
        code="SG042",
        title="wait too near the deadline",
        meaning="limits.maxWait exceeds 0.6 of what the deadline leaves after the longest service. If the service time is underestimated, answers come too late and their GPU time is lost. Without a written maxWait this is a warning (SG106).",
        example=as_file(
            "kind: EnginePool\nspec: {model: llama, endpoints: [{address: 10.0.0.1, port: 8000}]}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {limits: {maxWait: 4m}}\n"
        ),
        fix="Lower maxWait to 0.6 x (total - longest service time), or raise the total.",
    ),
    Code(
        code="SG043",
        title="unusable secret",
        meaning="A pool, listener or external service names certificates that the server lacks or cannot use: a missing file, a key of another certificate, or an expired certificate. The previous policies stay in force; in a cluster only this object keeps its previous version. Only a server with --secrets checks this, not `switchgear validate`.",
        situation="`spec: {tls: {secret: engines}}`, and --secrets has no folder `engines`",
        fix="Add the files, or name another secret. The server checks again by itself.",
    ),
    Code(
        code="SG044",
        title="no name to verify",
        meaning="TLS to engines or services at IP addresses, or found in a cluster, has no name to verify. Any certificate of the same CA would be accepted, also an attacker's.",
        example=as_file(
            "kind: EnginePool\n"
            "spec: {model: llama, endpoints: [{address: 10.0.0.1, port: 8000}], tls: {secret: engines}}\n"
        ),
        fix="Set tls.serverName or tls.subjectAltNames, or use host names as addresses.",
    ),
    Code(
        code="SG045",
        title="public route before a checked one",
        meaning="Callers are checked before Envoy reads the body. A route that matches model or stream is chosen only afterwards, so its requests would pass unchecked as those of the public route.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: m, endpoints: [{address: 10.0.0.1, port: 80}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: open}\nspec: {listener: {port: 80}, public: true, pools: [{pool: chat}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: checked}\nspec: {listener: {port: 80}, match: {model: m}, pools: [{pool: chat}]}\n"
        ),
        fix="Use paths that do not begin with one another, or different ports.",
    ),
    Code(
        code="SG046",
        title="unproven name of a tenant",
        meaning="The header that names the tenant is written neither by a claim of a verified token nor from a verified certificate. Any caller can send it, and take the quota of any tenant.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: m, endpoints: [{address: 10.0.0.1, port: 80}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: chat}\n"
            "spec: {listener: {port: 80, tenants: {header: x-tenant, others: {requests: 5}}}, pools: [{pool: chat}]}\n"
        ),
        fix="Write the header with jwt.providers[].claimToHeaders or tls.callers.identityHeader, or set trustHeader if a proxy in front of Envoy sets it.",
    ),
    Code(
        code="SG047",
        title="stages that do not fit",
        meaning="A route sends callers to a prefill pool, or lets a pool prefill that has another stage, another model, or decode engines without a side-car that reads the header; or two routes name different prefill pools for one decode pool.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: m, endpoints: [{address: 10.0.0.1, port: 80}]}\n---\n"
            "kind: EnginePool\nmetadata: {name: first}\n"
            "spec: {model: m, stage: prefill, endpoints: [{address: 10.0.0.2, port: 80}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: chat}\n"
            "spec: {listener: {port: 80}, pools: [{pool: chat}], prefill: {pool: first}}\n"
        ),
        fix="Set stage: decode in the target pools and stage: prefill in the pool that spec.prefill names.",
    ),
)

ERRORS: Final = (*_FILES, *_TEXT, *_DOCUMENTS, *_RELATIONS)
