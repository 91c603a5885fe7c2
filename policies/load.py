"""Load policy files into one ``PolicySet``, or report every problem in them at once.

Each file is read, parsed and validated on its own, and the result is cached by content: after an edit, only that
file is parsed. Relations between documents are checked each time.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from policies.document import API_VERSION, NEWEST_API_VERSION
from policies.document_relations import document_contradictions
from policies.findings import Finding, PolicyError, PolicyErrors, Problem
from policies.merge import effective, layers, of_decode_pool
from policies.model import PolicySet
from policies.origin import WHOLE_FILE, DocumentPlaces, Origins, origin
from policies.policy_files import FileSearch, decode_text, read, search
from policies.pool import EnginePool
from policies.relations import LocatedDocument, reference_contradictions
from policies.remote_prefill import Stage
from policies.resilience import ResiliencePolicy
from policies.route import ModelRoute
from policies.validated_document import ValidatedDocument, validate_policy
from policies.yaml_text import MAX_PROBLEMS, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedFile:
    """The outcome for the content of one file.

    ``broken``: a part is unreadable, so it may declare more than ``documents``. ``empty``: it has no document.
    """

    documents: tuple[ValidatedDocument, ...]
    problems: tuple[Problem, ...]
    broken: bool = False
    empty: bool = False


class LoadCache:
    """Validated files by the digest of their content; keeps those of the last load only."""

    def __init__(self) -> None:
        """Start empty."""
        self._files: Mapping[bytes, ValidatedFile] = {}

    def validated(self, contents: Mapping[Path, bytes]) -> Mapping[Path, ValidatedFile]:
        """Every file validated, known ones from the cache."""
        digests = {path: hashlib.sha256(content).digest() for path, content in contents.items()}
        fresh: dict[bytes, ValidatedFile] = {}
        for path, digest in digests.items():
            if digest not in fresh:
                fresh[digest] = self._files.get(digest) or validate_content(contents[path])
        self._files = fresh
        return {path: fresh[digest] for path, digest in digests.items()}


def validate_content(content: bytes) -> ValidatedFile:
    """Validate the content of one file on its own."""
    text = decode_text(content)
    if isinstance(text, Problem):
        return ValidatedFile(documents=(), problems=(text,), broken=True)
    parsed = parse(text)
    documents: list[ValidatedDocument] = []
    problems = list(parsed.problems)
    empty, broken = not parsed.problems, parsed.broken
    for raw in parsed.documents:
        if raw.value is None:
            continue  # nothing between two markers
        empty = False
        if len(problems) > MAX_PROBLEMS:
            broken = True
            break
        document, found = validate_policy(raw)
        problems += found
        if document is None:
            broken = True
        else:
            documents.append(document)
            problems += document_contradictions(document)
    return ValidatedFile(documents=tuple(documents), problems=_capped(problems), broken=broken, empty=empty)


def _capped(problems: list[Problem]) -> tuple[Problem, ...]:
    if len(problems) <= MAX_PROBLEMS:
        return tuple(problems)
    ordered = sorted(problems, key=lambda problem: problem.at)
    last = Problem(
        code="SG028",
        at=ordered[MAX_PROBLEMS].at,
        message="more problems from here on are not shown",
        hint="fix the first ones: they usually share one cause",
    )
    return (*ordered[:MAX_PROBLEMS], last)


def load(paths: Sequence[Path], cache: LoadCache | None = None) -> PolicySet:
    """The policies in these files and folders; raises ``PolicyErrors`` with all problems of all files.

    ``policies.policy_files`` describes the search in folders. Files in ``cache`` are not parsed again.
    """
    found = search(paths)
    return load_found(found, {path: read(path) for path in found.files}, paths, cache)


def load_found(
    found: FileSearch,
    contents: Mapping[Path, bytes | Problem],
    paths: Sequence[Path],
    cache: LoadCache | None = None,
) -> PolicySet:
    """The policies of files found under ``paths`` and already read; raises ``PolicyErrors`` as ``load`` does."""
    errors = [problem.error(file) for file, problem in found.problems]
    errors += [content.error(str(path)) for path, content in contents.items() if isinstance(content, Problem)]
    readable = {path: content for path, content in contents.items() if not isinstance(content, Problem)}
    return _loaded(readable, errors, paths, cache)


def load_contents(contents: Mapping[Path, bytes], cache: LoadCache | None = None) -> PolicySet:
    """The policies in these contents by file name; raises ``PolicyErrors`` as ``load`` does."""
    return _loaded(contents, [], tuple(contents), cache)


def load_validated(files: Mapping[Path, ValidatedFile]) -> PolicySet:
    """The policies of validated files; raises ``PolicyErrors`` as ``load`` does."""
    return _joined(files, [], tuple(files))


def _loaded(
    contents: Mapping[Path, bytes], errors: list[PolicyError], paths: Sequence[Path], cache: LoadCache | None
) -> PolicySet:
    """The policies of the readable files; with ``errors``, references to unreadable files are not checked."""
    return _joined((cache or LoadCache()).validated(contents), errors, tuple(contents) or paths)


def _joined(files: Mapping[Path, ValidatedFile], errors: list[PolicyError], paths: Sequence[Path]) -> PolicySet:
    complete = not errors
    errors += [problem.error(str(path)) for path, file in files.items() for problem in file.problems]
    documents = [
        LocatedDocument(file=str(path), document=document)
        for path, file in files.items()
        for document in file.documents
    ]
    errors += reference_contradictions(
        documents, complete=complete and not any(file.broken for file in files.values())
    )
    if not errors and not documents:
        errors += [_nothing_in(path) for path in paths] or [_nothing_in(Path())]
    if errors:
        raise PolicyErrors.of(errors)
    empty = tuple(str(path) for path, file in files.items() if file.empty)
    return _policy_set(documents, empty)


def _nothing_in(path: Path) -> PolicyError:
    problem = Problem(
        code="SG006",
        at=WHOLE_FILE,
        message="no policy document found",
        hint="begin a document with `apiVersion: switchgear.dev/v1alpha1`; see policies/examples/",
    )
    return problem.error(str(path))


def _policy_set(documents: Sequence[LocatedDocument], empty: Sequence[str]) -> PolicySet:
    models = [one.document.model for one in documents]
    pools = {one.metadata.name: one for one in models if isinstance(one, EnginePool)}
    routes = {one.metadata.name: one for one in models if isinstance(one, ModelRoute)}
    policies = {one.metadata.name: one for one in models if isinstance(one, ResiliencePolicy)}
    stacks = layers(sorted(pools), policies)
    merged = {stack: effective(stack, policies) for stack in set(stacks.values())}
    of_pools = {
        name: of_decode_pool(merged[stacks[name]], stacks[name], policies)
        if pools[name].spec.stage is Stage.DECODE
        else merged[stacks[name]]
        for name in sorted(pools)
    }
    digests = sorted((one.document.key, one.document.digest) for one in documents)
    return PolicySet(
        pools=MappingProxyType(dict(sorted(pools.items()))),
        routes=MappingProxyType(dict(sorted(routes.items()))),
        policies=MappingProxyType(dict(sorted(policies.items()))),
        effective=MappingProxyType(of_pools),
        origins=Origins(
            {one.document.key: DocumentPlaces(file=one.file, places=one.document.places) for one in documents}
        ),
        digest=hashlib.sha256(repr(digests).encode()).hexdigest(),
        layers=MappingProxyType(stacks),
        remarks=tuple(_empty(file) for file in empty),
        notes=tuple(_older_version(documents)),
    )


def _older_version(documents: Sequence[LocatedDocument]) -> Iterator[Finding]:
    """One note for all documents of the older version, at the first."""
    older = [one for one in documents if one.document.api_version == API_VERSION]
    if older:
        first = older[0]
        yield Finding(
            code="SG199",
            origin=origin(first.file, first.document.at("apiVersion")),
            path="apiVersion",
            message=f"{len(older)} of {len(documents)} documents use {API_VERSION}, which is deprecated",
            fix=f"`switchgear convert --in-place -f PATH`, once every reader knows {NEWEST_API_VERSION}",
        )


def _empty(file: str) -> Finding:
    return Finding(
        code="SG100",
        origin=origin(file, WHOLE_FILE),
        path="",
        message="empty file, or only a comment",
        fix="add a policy, or remove the file",
    )
