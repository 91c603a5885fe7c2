"""Settings of a fake engine: arguments of the library and flags of the command line."""

from dataclasses import dataclass
from pathlib import Path

from engine.tls.paths import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One simulated engine, scheduled in steps like vLLM.

    A step takes ``token_s`` and the costs of its tokens. ``prefill_s + prefill_token_s x prompt tokens`` is the
    shortest time to the first token; it overlaps with other calls. With the defaults a 16-token answer takes
    0.2 s, and an engine serves 40 calls/s.
    """

    name: str = "fake-0"
    model: str = "fake-model"
    host: str = "127.0.0.1"
    port: int = 0
    slots: int = 8  # vLLM: --max-num-seqs, per rank
    data_parallel_size: int = 1  # vLLM: --data-parallel-size
    prefill_s: float = 0.05
    prefill_token_s: float = 0.0
    token_s: float = 0.01  # shortest duration of a step
    # Added to a step: per prompt token, per prompt token and token before it, per running answer.
    step_prefill_token_s: float = 0.0
    step_context_token_s: float = 0.0
    step_decode_s: float = 0.0
    max_num_batched_tokens: int = 2048  # vLLM: --max-num-batched-tokens, per step
    kv_cache_tokens: int = 0  # 0 for slots x max_model_len, which never fills up
    block_size: int = 16  # vLLM: --block-size
    enable_prefix_caching: bool = False  # vLLM: --enable-prefix-caching, there on by default
    max_model_len: int = 4096
    # vLLM: --lora-modules, without paths: names with commas. More are loaded and unloaded at run time, as with
    # VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.
    lora_modules: str = ""
    no_runtime_lora: bool = False  # without VLLM_ALLOW_RUNTIME_LORA_UPDATING: no adapter is loaded or unloaded
    lora_paths: str = ""  # paths with adapters, with commas; others are refused; empty: every path has one
    lora_load_s: float = 0.0  # duration of a load; generation continues meanwhile
    # vLLM: --max-num-queued-reqs, a limit on unfinished calls, running and waiting; None for no limit.
    max_unfinished: int | None = None
    first_token_gate: bool = False  # hold stream headers until the first token
    kv_keep_s: float = 480.0  # vLLM: VLLM_NIXL_ABORT_REQUEST_TIMEOUT, for KV caches that none fetches
    kv_transfer_token_s: float = 0.0  # time for each prompt token until another engine has the KV cache
    routing_sidecar: bool = False  # with llm-d's side-car on its port: another engine may prefill
    stream_interval: int = 1  # vLLM: --stream-interval, tokens per SSE chunk after the first
    wake_s: float = 0.002  # shortest timer interval; slot timing stays exact
    shutdown_timeout_s: float = 0.0  # vLLM: --shutdown-timeout, for SIGTERM
    seed: int = 0  # selects the calls that a fault with a share hits
    # File that keeps the call log over SIGKILL; it also enables detection of a stopped process.
    journal: str = ""
    # vLLM: --ssl-certfile, --ssl-keyfile, --enable-ssl-refresh; and --ssl-ca-certs with --ssl-cert-reqs=2, which
    # requires client certificates. PEM.
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    api_key: str = ""  # vLLM: --api-key; /v1 answers 401 without it

    @property
    def kv_blocks(self) -> int:
        """Size of the KV cache; it holds at least one longest call."""
        tokens = self.kv_cache_tokens or self.slots * self.max_model_len
        return -(-max(tokens, self.max_model_len) // self.block_size)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that the engine starts with."""
        return tuple(name for name in self.lora_modules.split(",") if name)

    @property
    def tls(self) -> TlsFiles | None:
        """TLS files; None for plain HTTP."""
        if not self.tls_cert:
            return None
        authorities = Path(self.tls_client_ca) if self.tls_client_ca else None
        return TlsFiles(certificate=Path(self.tls_cert), key=Path(self.tls_key), authorities=authorities)
