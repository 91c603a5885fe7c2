"""What a fake engine is made of. One dataclass makes the library's arguments and the command line's flags."""

from dataclasses import dataclass
from pathlib import Path

from engine.tls.paths import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One simulated engine.

    A call costs ``prefill_s + prefill_token_s x prompt tokens`` until its first token and ``token_s`` for each
    further one, whatever runs beside it. The defaults make a 16-token answer of 0.2 s and an engine of 40 calls
    per second.
    """

    name: str = "fake-0"
    model: str = "fake-model"
    host: str = "127.0.0.1"
    port: int = 0
    slots: int = 8  # vLLM: --max-num-seqs
    prefill_s: float = 0.05
    prefill_token_s: float = 0.0
    token_s: float = 0.01
    max_model_len: int = 4096
    # vLLM: --max-num-queued-reqs, a cap on all unfinished calls, running and waiting; None for no cap.
    max_unfinished: int | None = None
    first_token_gate: bool = False  # hold the headers of a stream until its first token
    stream_interval: int = 1  # vLLM: --stream-interval, tokens per SSE chunk after the first
    wake_s: float = 0.002  # the simulation looks at its clock at most this often; slots lose nothing by it
    shutdown_timeout_s: float = 0.0  # vLLM: --shutdown-timeout, for SIGTERM
    seed: int = 0  # picks the calls that a fault with a share hits
    # File in which the book survives a SIGKILL; an engine that has one also knows when its process was stopped.
    journal: str = ""
    # vLLM: --ssl-certfile, --ssl-keyfile, --enable-ssl-refresh; and --ssl-ca-certs with --ssl-cert-reqs=2, which
    # makes callers prove themselves. PEM.
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""

    @property
    def tls(self) -> TlsFiles | None:
        """What it is called by over TLS; None for plain HTTP."""
        if not self.tls_cert:
            return None
        authorities = Path(self.tls_client_ca) if self.tls_client_ca else None
        return TlsFiles(certificate=Path(self.tls_cert), key=Path(self.tls_key), authorities=authorities)
