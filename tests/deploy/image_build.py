"""Builds a Dockerfile of ``deploy/images`` into a folder and runs it there: namespaces and a root of its own.

``build`` carries out the instructions itself and needs no builder; ``Buildah`` leaves them to Buildah. The
base image is a stand-in: this machine's Python, a shell, and the system libraries that every wheel may expect.
All else is as the Dockerfile says. There is no network: packages come from a folder of wheels.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.deploy.dockerfile import stages
from tests.shell import ROOT

LIBRARIES: Final = ("libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1", "libstdc++.so.6")
"""Of the system: some of those that PEP 600 lets wheels expect. An image has more; nothing of ours may need it."""

_WHEELS: Final = "/wheels"
_STANDARD: Final = shutil.ignore_patterns("__pycache__", "site-packages", "test", "idlelib", "config-*", "*.a")


@dataclass(frozen=True, kw_only=True)
class Image:
    """A root folder, and how a container is started in it."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin"})
    folder: str = "/"
    user: int = 0
    entry_point: Sequence[str] = ()
    command: Sequence[str] = ()
    health_check: Sequence[str] = ()


@contextmanager
def network() -> Iterator[Path]:
    """A network with nothing but loopback, for several containers."""
    code = "from tests.deploy.image_build import raise_loopback; raise_loopback()"
    holder = subprocess.Popen(
        [_found("unshare"), "--net", sys.executable, "-c", code],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"up\n"
        yield Path(f"/proc/{holder.pid}/ns/net")
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait()


def raise_loopback() -> None:
    """Bring ``lo`` up in this process's network, and keep the network until stdin ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        set_flags, up_and_running = 0x8914, 0x41
        fcntl.ioctl(asked, set_flags, struct.pack("16sh", b"lo", up_and_running))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    sys.stdin.read()


def unusable() -> str:
    """Why no image can be built and run here; empty if one can."""
    if os.geteuid() != 0:
        return "building an image's root takes root"
    if shutil.which("nsenter") is None:
        return "nsenter of util-linux is not installed"
    apart = [_found("unshare"), "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    answer = subprocess.run(apart, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return f"no namespaces here: {answer.stderr.strip()}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            _write_device(Path(folder) / "null", 3)
            (Path(folder) / "null").read_bytes()
        except OSError as error:
            return f"no device files in {tempfile.gettempdir()}: {error.strerror}"
    return ""


def argv(image: Image, command: Sequence[str], net: Path) -> list[str]:
    """Command line that runs ``command`` as process 1 of a container of ``image``."""
    return [
        *(_found("nsenter"), f"--net={net}", _found("unshare"), "--mount", "--pid", "--fork", "--kill-child"),
        *(f"--root={image.root}", "--mount-proc=/proc", f"--wd={image.folder}"),
        *(f"--setgid={image.user}", f"--setuid={image.user}", *command),
    ]


def run(image: Image, command: Sequence[str], net: Path) -> str:
    """What a container of ``image`` prints on stdout; CalledProcessError if it fails."""
    done = subprocess.run(
        argv(image, command, net), env=dict(image.environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} exits {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(dockerfile: Path, folder: Path, base: Path, wheels: Path, net: Path) -> Image:
    """Carry out the instructions of a Dockerfile; its last stage has its root below ``folder``."""
    built: dict[str, Image] = {}
    last = Image(root=folder)
    for number, ((_, start), *rest) in enumerate(stages(dockerfile)):
        last = Image(root=folder / str(number))
        # No file of the base is written to.
        shutil.copytree(base, last.root, symlinks=True, copy_function=os.link)
        _write_devices(last.root)
        for instruction, text in rest:
            if instruction == "COPY":
                _copy(shlex.split(text), last, built)
            elif instruction == "RUN":
                _run(text, last, wheels, net)
            else:
                last = _SETTINGS[instruction](text, last)
                (last.root / last.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        built[start.rpartition(" ")[2]] = last
    for image in built.values():
        if image is not last:
            shutil.rmtree(image.root)
    return last


class Buildah:
    """Buildah without network, with a store of its own; there, the stand-in has the name of the base image."""

    def __init__(self, folder: Path, base: Path, base_names: Iterable[str], net: Path) -> None:
        self._folder = folder
        # vfs copies whole layers, and so needs no kernel module or mount.
        store = (f"--root={folder}/store", f"--runroot={folder}/run", "--storage-driver=vfs")
        self._command = [_found("nsenter"), f"--net={net}", _found("buildah"), *store]
        started = self._answer("from", "scratch")
        self._answer("copy", started, str(base), "/")
        for name in base_names:
            self._answer("commit", started, f"docker.io/library/{name}")
        self._answer("rm", started)

    def build(self, dockerfile: Path, wheels: Path) -> Image:
        """Build a Dockerfile as its head says, with packages from a folder; return its root and settings."""
        pip = self._folder / "pip.conf"
        pip.write_text(f"[global]\nno-index = true\nfind-links = {_WHEELS}\n")
        mounts = (f"--volume={wheels}:{_WHEELS}:ro", f"--volume={pip}:/etc/pip.conf:ro")
        # Docker's format has health checks, OCI's has not. Chroots need no runtime.
        how = ("--format=docker", "--isolation=chroot", "--pull=never")
        ignored = f"--ignorefile={dockerfile}.dockerignore"
        self._answer(
            "build", *how, *mounts, ignored, f"--tag={dockerfile.stem}", f"--file={dockerfile}", str(ROOT)
        )
        started = self._answer("from", "--pull=never", f"localhost/{dockerfile.stem}")
        root = Path(self._answer("mount", started))
        _write_devices(root)
        config = json.loads(self._answer("inspect", started))["Docker"]["config"]
        return Image(
            root=root,
            environment=dict(one.split("=", 1) for one in config["Env"]),
            folder=config["WorkingDir"],
            user=int(config["User"].partition(":")[0]),
            entry_point=config["Entrypoint"],
            command=config["Cmd"],
            health_check=config.get("Healthcheck", {"Test": ["NONE"]})["Test"][1:],
        )

    def remove(self) -> None:
        """Unmount and remove all images."""
        self._answer("umount", "--all")
        self._answer("rm", "--all")
        shutil.rmtree(self._folder)

    def _answer(self, command: str, *arguments: str) -> str:
        done = subprocess.run([*self._command, command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"buildah {command} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()


def _environment(text: str, image: Image) -> Image:
    added = (part.split("=", 1) for part in shlex.split(text))
    known = {key: value.replace("$PATH", image.environment["PATH"]) for key, value in added}
    return replace(image, environment={**image.environment, **known})


def _health_check(text: str, image: Image) -> Image:
    command = text.partition("CMD ")[2]
    return replace(image, health_check=json.loads(command) if command else ())


def _user(text: str, image: Image) -> Image:
    user, _, group = text.partition(":")
    assert user == group
    return replace(image, user=int(user))


_SETTINGS: Final[Mapping[str, Callable[[str, Image], Image]]] = {
    "CMD": lambda text, image: replace(image, command=json.loads(text)),
    "ENTRYPOINT": lambda text, image: replace(image, entry_point=json.loads(text)),
    "ENV": _environment,
    "EXPOSE": lambda _, image: image,
    "HEALTHCHECK": _health_check,
    "LABEL": lambda _, image: image,
    "USER": _user,
    "WORKDIR": lambda text, image: replace(image, folder=text),
}


def _copy(words: Sequence[str], image: Image, built: Mapping[str, Image]) -> None:
    *sources, target = [word for word in words if not word.startswith("--")]
    into = image.root / os.path.normpath(Path(image.folder) / target).lstrip("/")
    if words[0].startswith("--from="):
        (source,) = sources
        into.parent.mkdir(parents=True, exist_ok=True)
        # The other stage is not needed again, and moving is faster than copying.
        (built[words[0].removeprefix("--from=")].root / source.lstrip("/")).rename(into)
        return
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, into)


def _run(text: str, image: Image, wheels: Path, net: Path) -> None:
    mounted = image.root / _WHEELS[1:]
    mounted.mkdir(exist_ok=True)
    for wheel in wheels.iterdir():
        if not (mounted / wheel.name).exists():
            os.link(wheel, mounted / wheel.name)
    packages = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": _WHEELS, "HOME": "/root"}
    run(replace(image, environment={**image.environment, **packages}), ["/bin/sh", "-c", text], net)


def _write_devices(root: Path) -> None:
    for name, minor in (("null", 3), ("urandom", 9)):
        _write_device(root / "dev" / name, minor)


def _write_device(path: Path, minor: int) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(1, minor))
    path.chmod(0o666)


def write_base(root: Path) -> None:
    """Write the stand-in for the base image."""
    for folder in ("bin", "dev/shm", "etc", "proc", "root", "tmp", "usr/local/bin", "usr/local/lib"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("dev/shm", "tmp"):
        (root / folder).chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(os.path.realpath(sys.executable), root / "usr/local/bin" / python)
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to(python)
    standard = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(standard, root / "usr/local/lib" / python, symlinks=True, ignore=_STANDARD)
    shutil.copy("/bin/sh", root / "bin/sh")
    programs = [root / "usr/local/bin" / python, root / "bin/sh", *(root / "usr/local/lib").rglob("*.so")]
    needed = {path for program in programs for path in _libraries(program)}
    (libc,) = (path for path in needed if path.name == "libc.so.6")
    for path in sorted(needed | {libc.parent / name for name in LIBRARIES}):
        (root / path.parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.relative_to("/"))


def _libraries(program: Path) -> Sequence[Path]:
    answer = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", answer.stdout)]


def _found(program: str) -> str:
    found = shutil.which(program)
    assert found is not None
    return found
