"""Codes of what stops policies from being used."""

# ruff: noqa: E501 - a table of prose and of examples that are shown as they stand

from typing import Final

from policies.codes.code import Code, as_file

_FILES: Final = (
    Code(
        code="SG001",
        title="no such file or folder",
        meaning="A path that was asked for does not exist, or is a link whose target is gone.",
        situation="`switchgear validate -f polices/`",
        fix="Correct the path.",
    ),
    Code(
        code="SG002",
        title="cannot be read",
        meaning="The file system refuses: permissions, or a failing disk or mount.",
        situation="`chmod 000 policies/pool.yaml`",
        fix="Look at the permissions of the file and of the folders above it.",
    ),
    Code(
        code="SG003",
        title="not a file",
        meaning="A pipe, socket or device. It is not opened, because reading it could wait for ever.",
        situation="`mkfifo policies/pool.yaml`",
        fix="Name a file or a folder, or remove the intruder from the folder.",
    ),
    Code(
        code="SG004",
        title="link that leads back",
        meaning="A symbolic link leads to itself or to a folder it is in.",
        situation="`ln -s . policies/again`",
        fix="Remove the link.",
    ),
    Code(
        code="SG005",
        title="file too large",
        meaning="More than 8 MiB, room for some hundred thousand engines. The file is not read any further.",
        situation="a log with the name `dump.yaml`",
        fix="Split it by pool, or move what is no policy out of the folder.",
    ),
    Code(
        code="SG006",
        title="no policy",
        meaning="A folder holds no policy file, or none of the files holds a document.",
        situation="an empty folder, or only empty files",
        fix="Look at the path. Files are named *.yaml, *.yml or *.json; hidden ones do not count.",
    ),
    Code(
        code="SG007",
        title="too many files",
        meaning="More than 10,000 policy files: most likely not the folder that was meant.",
        situation="`switchgear validate -f /`",
        fix="Name the folder of the policies.",
    ),
)

_TEXT: Final = (
    Code(
        code="SG010",
        title="not UTF-8",
        meaning="The file is in another encoding. A byte order mark is fine, also that of UTF-16.",
        situation="a comment with an accent, saved as Latin-1",
        fix="Save the file as UTF-8.",
    ),
    Code(
        code="SG011",
        title="not YAML",
        meaning="The text has no structure from here on. Reading goes on at the next `---`.",
        example=as_file("kind: EnginePool\nspec: {model: llama\n"),
        fix="Look at brackets, quotes and indentation here and in the line above.",
    ),
    Code(
        code="SG012",
        title="tab",
        meaning="YAML indents with spaces only.",
        example=as_file("kind: EnginePool\nspec:\n\tmodel: llama\n"),
        fix="Replace tabs by spaces, two per level.",
    ),
    Code(
        code="SG013",
        title="said twice",
        meaning="A block has the same field twice. Which one would win depends on who reads it.",
        example=as_file("kind: EnginePool\nspec:\n  model: llama\n  model: qwen\n"),
        fix="Keep one of them.",
    ),
    Code(
        code="SG014",
        title="name that is no text",
        meaning="Names of fields and labels are text; without quotes, `8080` is a number.",
        example=as_file("kind: EnginePool\nmetadata: {name: chat, labels: {8080: open}}\nspec: {model: llama}\n"),
        fix="Put the name in quotes.",
    ),
    Code(
        code="SG015",
        title="alias that cannot be followed",
        meaning="It repeats what is marked nowhere above it, or itself, or aliases multiply beyond 10 MB of text.",
        example=as_file("kind: EnginePool\nspec: {model: llama, endpoints: *engines}\n"),
        fix="Mark what is to be repeated with &name, above the alias.",
    ),
    Code(
        code="SG016",
        title="too deep",
        meaning="More than 64 levels; a policy has eight.",
        example=as_file("kind: EnginePool\nspec: " + "[" * 70 + "]" * 70 + "\n"),
        fix="Look for brackets that are not closed.",
    ),
    Code(
        code="SG017",
        title="tag",
        meaning="Tags such as !!binary or !include mean nothing here.",
        example=as_file("kind: EnginePool\nspec: {model: !secret llama}\n"),
        fix="Remove the tag.",
    ),
    Code(
        code="SG018",
        title="bad merge",
        meaning="`<<` takes an alias of a block, or a list of such aliases.",
        example=as_file("kind: EnginePool\nspec:\n  <<: llama\n  model: llama\n"),
        fix="Mark a block with &name and write `<<: *name`.",
    ),
)

_DOCUMENTS: Final = (
    Code(
        code="SG020",
        title="not a policy document",
        meaning="A document is a block of fields: apiVersion, kind, metadata, spec.",
        example=as_file("- kind: EnginePool\n"),
        fix="Remove the dash in front, or the stray `---`.",
    ),
    Code(
        code="SG021",
        title="unknown apiVersion",
        meaning="The document is missing its apiVersion or has one that this Switchgear does not know.",
        example=as_file(
            "apiVersion: switchgear.dev/v2\nkind: EnginePool\nmetadata: {name: chat}\nspec: {model: m}\n"
        ),
        fix="Write `apiVersion: switchgear.dev/v1alpha1`; documents of others belong in another folder.",
    ),
    Code(
        code="SG022",
        title="unknown kind",
        meaning="The document is missing its kind or has one that is none of ours.",
        example=as_file("apiVersion: switchgear.dev/v1alpha1\nkind: EnginPool\nmetadata: {name: chat}\n"),
        fix="Write EnginePool, ModelRoute or ResiliencePolicy.",
    ),
    Code(
        code="SG023",
        title="unknown field",
        meaning="Nothing reads this field. It is refused because a limit that was misspelled is a limit that is off.",
        example=as_file("kind: ResiliencePolicy\nspec: {limits: {max_wait: 2s}}\n"),
        fix="Correct the name; `switchgear explain` shows all of them.",
    ),
    Code(
        code="SG024",
        title="required field missing",
        meaning="A field without a sensible default was left out.",
        example=as_file("kind: EnginePool\nspec: {endpoints: [{address: 10.0.0.1}]}\n"),
        fix="Write it.",
    ),
    Code(
        code="SG025",
        title="wrong kind of value",
        meaning="Text where a number belongs, one value where a list belongs, and so on. `yes` and `on` are text.",
        example=as_file("kind: ResiliencePolicy\nspec: {hedging: {enabled: yes}}\n"),
        fix="Write what the message asks for; quotes make text, their absence makes numbers.",
    ),
    Code(
        code="SG026",
        title="value not allowed",
        meaning="Out of range, not one of the values there are, or not in the form it must have.",
        example=as_file("kind: ResiliencePolicy\nspec: {retries: {attempts: 99}}\n"),
        fix="Choose a value the message allows.",
    ),
    Code(
        code="SG027",
        title="not a duration",
        meaning="Durations have a unit: 250ms, 2s, 15m, 1m30s. Whether a bare 5 is seconds is a guess.",
        example=as_file("kind: ResiliencePolicy\nspec: {limits: {maxWait: 5}}\n"),
        fix="Add the unit.",
    ),
    Code(
        code="SG028",
        title="and more",
        meaning="A file has more than a hundred problems; the others are not shown.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: m\n  endpoints: [" + "{address: 10.0.0.1}, " * 101 + "]\n"
        ),
        fix="Mend the first ones: so many usually have one cause.",
    ),
)

_RELATIONS: Final = (
    Code(
        code="SG030",
        title="name taken",
        meaning="Two documents of a kind have the same name. Both places are said.",
        example=as_file(
            "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: a}\n---\n"
            "kind: EnginePool\nmetadata: {name: chat}\nspec: {model: b}\n"
        ),
        fix="Rename or remove one.",
    ),
    Code(
        code="SG031",
        title="no such pool",
        meaning="A route or a policy names a pool that no file declares.",
        example=as_file("kind: ResiliencePolicy\nmetadata: {name: strict}\nspec: {pools: [chatt]}\n"),
        fix="Correct the name, or give the file of the pool along.",
    ),
    Code(
        code="SG032",
        title="pool with two policies",
        meaning="Besides the policy named default, a pool has one policy; else the order of files would decide.",
        example=as_file(
            "kind: ResiliencePolicy\nmetadata: {name: a}\nspec: {pools: [chat]}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: b}\nspec: {pools: [chat]}\n"
        ),
        fix="Join the two, or take the pool out of one.",
    ),
    Code(
        code="SG033",
        title="policy for nobody",
        meaning="A policy that is not named default lists no pool.",
        example=as_file("kind: ResiliencePolicy\nmetadata: {name: strict}\nspec: {retries: {attempts: 1}}\n"),
        fix="List pools, or name it default.",
    ),
    Code(
        code="SG034",
        title="default with a list",
        meaning="The policy named default is for every pool, so a list of pools contradicts it.",
        example=as_file("kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {pools: [chat]}\n"),
        fix="Remove the list, or rename the policy.",
    ),
    Code(
        code="SG035",
        title="engine twice",
        meaning="Two entries of a pool have the same address and port, or the same name.",
        example=as_file(
            "kind: EnginePool\nspec:\n  model: llama\n  endpoints:\n"
            "    - {address: 10.0.0.1, port: 8000}\n    - {address: 10.0.0.1, port: 8000}\n"
        ),
        fix="Remove one.",
    ),
    Code(
        code="SG036",
        title="port with two addresses",
        meaning="Routes of one port share one Envoy listener, and a listener has one address.",
        example=as_file(
            "kind: ModelRoute\nmetadata: {name: a}\nspec: {listener: {port: 80}, match: {model: a}, pools: [{pool: chat}]}\n"
            "---\nkind: ModelRoute\nmetadata: {name: b}\n"
            "spec: {listener: {port: 80, address: 127.0.0.1}, match: {model: b}, pools: [{pool: chat}]}\n"
        ),
        fix="Give them the same address, or different ports.",
    ),
    Code(
        code="SG037",
        title="routes that match the same",
        meaning="Two routes of one port match exactly the same requests; only one could ever be used.",
        example=as_file(
            "kind: ModelRoute\nmetadata: {name: a}\nspec: {listener: {port: 80}, pools: [{pool: chat}]}\n---\n"
            "kind: ModelRoute\nmetadata: {name: b}\nspec: {listener: {port: 80}, pools: [{pool: chat}]}\n"
        ),
        fix="Make their match differ, or join their pools in one route.",
    ),
    Code(
        code="SG038",
        title="no weight",
        meaning="All pools of a route have weight 0.",
        example=as_file("kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat, weight: 0}]}\n"),
        fix="Give one of them a weight.",
    ),
    Code(
        code="SG039",
        title="pool listed twice",
        meaning="A route or policy lists the same pool twice.",
        example=as_file("kind: ModelRoute\nspec: {listener: {port: 80}, pools: [{pool: chat}, {pool: chat}]}\n"),
        fix="Keep one entry; add weights up.",
    ),
    Code(
        code="SG040",
        title="contradiction in a document",
        meaning="Two fields of a document exclude each other.",
        example=as_file("kind: EnginePool\nspec: {model: llama, serviceTime: 5s, longestServiceTime: 2s}\n"),
        fix="Correct one of the two.",
    ),
    Code(
        code="SG041",
        title="contradiction between layers",
        meaning="Once the policies of a pool are laid over each other, two fields exclude each other: Envoy would "
        "refuse them, or what they are for would never happen.",
        example=as_file(
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {retries: {backoff: {base: 1s}}}\n"
        ),
        fix="Set both fields in the same policy.",
    ),
    Code(
        code="SG042",
        title="wait too near the deadline",
        meaning="The wait that limits.maxWait allows is more than 0.6 of what the deadline leaves after the longest "
        "service. A service time guessed a little too low stretches the wait, and then answers come too late and their "
        "GPU time is lost: a cliff, not a slope. Where nobody wrote maxWait the same is only advised (SG106).",
        example=as_file(
            "kind: EnginePool\nspec: {model: llama, endpoints: [{address: 10.0.0.1, port: 8000}]}\n---\n"
            "kind: ResiliencePolicy\nmetadata: {name: default}\nspec: {limits: {maxWait: 4m}}\n"
        ),
        fix="Lower maxWait to 0.6 x (total - longest service time), or raise the total.",
    ),
    Code(
        code="SG043",
        title="secret cannot be used",
        meaning="A pool names certificates that this server does not have, or that cannot be used as they are: a file "
        "is missing, a key belongs to another certificate, something has ended. The policies before stay in force; in a "
        "cluster only this pool stays as it was, and all others are taken up. Only a server that was started with "
        "--secrets knows; `switchgear validate` does not look.",
        situation="`spec: {tls: {secret: engines}}`, and --secrets has no folder `engines`",
        fix="Put the files there, or name a secret that is there. It is looked at again by itself.",
    ),
    Code(
        code="SG044",
        title="no name to hold an engine to",
        meaning="Engines at IP addresses, or found in a cluster, are to be spoken to by TLS, and nothing says whose "
        "name their certificates have to prove: any certificate of the same authority would do, an attacker's too.",
        example=as_file(
            "kind: EnginePool\n"
            "spec: {model: llama, endpoints: [{address: 10.0.0.1, port: 8000}], tls: {secret: engines}}\n"
        ),
        fix="Say tls.serverName, or tls.subjectAltNames; or give the engines by host names, which are then the names.",
    ),
)

ERRORS: Final = (*_FILES, *_TEXT, *_DOCUMENTS, *_RELATIONS)
