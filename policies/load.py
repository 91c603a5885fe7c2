"""Policy files to one ``PolicySet``, or to every problem in them at once.

Each file is read, parsed and judged by itself, and what came of it is remembered by its content: after an edit of
one file among a hundred, one file is parsed. What holds between documents is judged anew each time.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from policies.findings import Finding, PolicyError, PolicyErrors, Problem
from policies.merge import effective, layers
from policies.model import PolicySet
from policies.origin import WHOLE_FILE, DocumentPlaces, Origins, origin
from policies.policy_files import FileSearch, decode_text, read, search
from policies.pool import EnginePool
from policies.relations import LocatedDocument, document_contradictions, reference_contradictions
from policies.resilience import ResiliencePolicy
from policies.route import ModelRoute
from policies.validated_document import ValidatedDocument, validate_policy
from policies.yaml_text import MAX_PROBLEMS, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedFile:
    """What came of the content of one file, under whatever name it was read.

    ``broken``: part of it was not understood, so it may declare more than ``documents``. ``empty``: nothing in it.
    """

    documents: tuple[ValidatedDocument, ...]
    problems: tuple[Problem, ...]
    broken: bool = False
    empty: bool = False


class LoadCache:
    """Judged files by the digest of their content. Holds what the last load used and nothing else."""

    def __init__(self) -> None:
        """Begin with nothing remembered."""
        self._files: Mapping[bytes, ValidatedFile] = {}

    def validated(self, contents: Mapping[Path, bytes]) -> Mapping[Path, ValidatedFile]:
        """Every file judged, those known before from memory."""
        digests = {path: hashlib.sha256(content).digest() for path, content in contents.items()}
        fresh: dict[bytes, ValidatedFile] = {}
        for path, digest in digests.items():
            if digest not in fresh:
                fresh[digest] = self._files.get(digest) or validate_content(contents[path])
        self._files = fresh
        return {path: fresh[digest] for path, digest in digests.items()}


def validate_content(content: bytes) -> ValidatedFile:
    """Everything that can be said about the content of one file without looking at others."""
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
        message="there are more problems from here on; they are not shown",
        hint="so many at once usually have one cause, near the first of them",
    )
    return (*ordered[:MAX_PROBLEMS], last)


def load(paths: Sequence[Path], cache: LoadCache | None = None) -> PolicySet:
    """The policies in these files and folders; raises ``PolicyErrors`` with all problems of all files.

    Folders are searched as ``policies.policy_files`` says. With ``cache``, files whose content it knows are not
    parsed.
    """
    found = search(paths)
    return load_found(found, {path: read(path) for path in found.files}, paths, cache)


def load_found(
    found: FileSearch,
    contents: Mapping[Path, bytes | Problem],
    paths: Sequence[Path],
    cache: LoadCache | None = None,
) -> PolicySet:
    """The policies of what was found under ``paths`` and read before; raises ``PolicyErrors`` as ``load`` does."""
    errors = [problem.error(file) for file, problem in found.problems]
    errors += [content.error(str(path)) for path, content in contents.items() if isinstance(content, Problem)]
    readable = {path: content for path, content in contents.items() if not isinstance(content, Problem)}
    return _loaded(readable, errors, paths, cache)


def load_contents(contents: Mapping[Path, bytes], cache: LoadCache | None = None) -> PolicySet:
    """The policies in files read before, by the name each had; raises ``PolicyErrors`` as ``load`` does."""
    return _loaded(contents, [], tuple(contents), cache)


def load_validated(files: Mapping[Path, ValidatedFile]) -> PolicySet:
    """The policies of files that were judged before; raises ``PolicyErrors`` as ``load`` does."""
    return _joined(files, [], tuple(files))


def _loaded(
    contents: Mapping[Path, bytes], errors: list[PolicyError], paths: Sequence[Path], cache: LoadCache | None
) -> PolicySet:
    """The policies of what could be read; ``errors`` say what could not, and then references may lead there."""
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
        message="there is no policy document here",
        hint="a document begins with `apiVersion: switchgear.dev/v1alpha1`; policies/examples/ has complete ones",
    )
    return problem.error(str(path))


def _policy_set(documents: Sequence[LocatedDocument], empty: Sequence[str]) -> PolicySet:
    models = [one.document.model for one in documents]
    pools = {one.metadata.name: one for one in models if isinstance(one, EnginePool)}
    routes = {one.metadata.name: one for one in models if isinstance(one, ModelRoute)}
    policies = {one.metadata.name: one for one in models if isinstance(one, ResiliencePolicy)}
    stacks = layers(sorted(pools), policies)
    merged = {stack: effective(stack, policies) for stack in set(stacks.values())}
    said = sorted((one.document.key, one.document.digest) for one in documents)
    return PolicySet(
        pools=MappingProxyType(dict(sorted(pools.items()))),
        routes=MappingProxyType(dict(sorted(routes.items()))),
        policies=MappingProxyType(dict(sorted(policies.items()))),
        effective=MappingProxyType({name: merged[stacks[name]] for name in sorted(pools)}),
        origins=Origins(
            {one.document.key: DocumentPlaces(file=one.file, places=one.document.places) for one in documents}
        ),
        digest=hashlib.sha256(repr(said).encode()).hexdigest(),
        layers=MappingProxyType(stacks),
        remarks=tuple(_empty(file) for file in empty),
    )


def _empty(file: str) -> Finding:
    return Finding(
        code="SG100",
        origin=origin(file, WHOLE_FILE),
        path="",
        message="this file says nothing: it is empty, or all of it is a comment",
        fix="write a policy into it, or remove it",
    )
