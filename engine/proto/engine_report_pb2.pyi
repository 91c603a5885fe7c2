from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    STARTING: _ClassVar[Verdict]
    READY: _ClassVar[Verdict]
    BUSY: _ClassVar[Verdict]
    HUNG: _ClassVar[Verdict]
    DEAD: _ClassVar[Verdict]
    DRAINING: _ClassVar[Verdict]
    DEGRADED: _ClassVar[Verdict]
    MISCONFIGURED: _ClassVar[Verdict]
    PAUSED: _ClassVar[Verdict]

class Doubt(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DOUBT_UNSPECIFIED: _ClassVar[Doubt]
    REFUSED: _ClassVar[Doubt]
    SILENT: _ClassVar[Doubt]

class GpuAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GPU_ACTION_UNSPECIFIED: _ClassVar[GpuAction]
    NONE: _ClassVar[GpuAction]
    WATCH: _ClassVar[GpuAction]
    DEGRADE: _ClassVar[GpuAction]
    DRAIN: _ClassVar[GpuAction]
    EJECT: _ClassVar[GpuAction]
VERDICT_UNSPECIFIED: Verdict
STARTING: Verdict
READY: Verdict
BUSY: Verdict
HUNG: Verdict
DEAD: Verdict
DRAINING: Verdict
DEGRADED: Verdict
MISCONFIGURED: Verdict
PAUSED: Verdict
DOUBT_UNSPECIFIED: Doubt
REFUSED: Doubt
SILENT: Doubt
GPU_ACTION_UNSPECIFIED: GpuAction
NONE: GpuAction
WATCH: GpuAction
DEGRADE: GpuAction
DRAIN: GpuAction
EJECT: GpuAction

class WatchRequest(_message.Message):
    __slots__ = ("watcher", "pool")
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    watcher: str
    pool: str
    def __init__(self, watcher: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class EngineReport(_message.Message):
    __slots__ = ("schema_version", "boot_id", "sequence", "verdict", "evidence", "doubt", "requests_in_flight", "requests_waiting", "slots", "kv_cache_usage_ratio", "tokens_per_s", "time_to_first_token", "time_per_output_token", "model", "revision", "gpu", "drain", "canary", "exact_verdict", "ranks", "hung_ranks", "adapters", "token_gaps", "token_work")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_RATIO_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_OUTPUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    EXACT_VERDICT_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    HUNG_RANKS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_GAPS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_WORK_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    boot_id: str
    sequence: int
    verdict: Verdict
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    doubt: Doubt
    requests_in_flight: int
    requests_waiting: int
    slots: int
    kv_cache_usage_ratio: float
    tokens_per_s: float
    time_to_first_token: Quantiles
    time_per_output_token: Quantiles
    model: str
    revision: str
    gpu: GpuGroup
    drain: Drain
    canary: Canary
    exact_verdict: Verdict
    ranks: _containers.RepeatedScalarFieldContainer[str]
    hung_ranks: _containers.RepeatedScalarFieldContainer[str]
    adapters: Adapters
    token_gaps: TokenGaps
    token_work: TokenWork
    def __init__(self, schema_version: _Optional[int] = ..., boot_id: _Optional[str] = ..., sequence: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ..., doubt: _Optional[_Union[Doubt, str]] = ..., requests_in_flight: _Optional[int] = ..., requests_waiting: _Optional[int] = ..., slots: _Optional[int] = ..., kv_cache_usage_ratio: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., time_to_first_token: _Optional[_Union[Quantiles, _Mapping]] = ..., time_per_output_token: _Optional[_Union[Quantiles, _Mapping]] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., gpu: _Optional[_Union[GpuGroup, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ..., exact_verdict: _Optional[_Union[Verdict, str]] = ..., ranks: _Optional[_Iterable[str]] = ..., hung_ranks: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Union[Adapters, _Mapping]] = ..., token_gaps: _Optional[_Union[TokenGaps, _Mapping]] = ..., token_work: _Optional[_Union[TokenWork, _Mapping]] = ...) -> None: ...

class TokenWork(_message.Message):
    __slots__ = ("prompt_tokens", "generation_tokens", "finished")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    generation_tokens: int
    finished: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., generation_tokens: _Optional[int] = ..., finished: _Optional[int] = ...) -> None: ...

class TokenGaps(_message.Message):
    __slots__ = ("bounds_s", "counts", "sum_s")
    BOUNDS_S_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_S_FIELD_NUMBER: _ClassVar[int]
    bounds_s: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum_s: float
    def __init__(self, bounds_s: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum_s: _Optional[float] = ...) -> None: ...

class Adapters(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("in_row", "age_s", "took_s")
    IN_ROW_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    in_row: int
    age_s: float
    took_s: float
    def __init__(self, in_row: _Optional[int] = ..., age_s: _Optional[float] = ..., took_s: _Optional[float] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("reading", "threshold", "age_s", "sentence")
    READING_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    reading: str
    threshold: str
    age_s: float
    sentence: str
    def __init__(self, reading: _Optional[str] = ..., threshold: _Optional[str] = ..., age_s: _Optional[float] = ..., sentence: _Optional[str] = ...) -> None: ...

class Quantiles(_message.Message):
    __slots__ = ("p50_s", "p99_s")
    P50_S_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    p50_s: float
    p99_s: float
    def __init__(self, p50_s: _Optional[float] = ..., p99_s: _Optional[float] = ...) -> None: ...

class GpuGroup(_message.Message):
    __slots__ = ("action", "statement", "gpus")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    action: GpuAction
    statement: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    def __init__(self, action: _Optional[_Union[GpuAction, str]] = ..., statement: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("rank", "uuid", "name", "temperature_c", "power_w", "utilisation_percent", "sm_clock_mhz", "memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes", "ecc_corrected", "ecc_uncorrected", "throttled", "xids")
    RANK_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ECC_CORRECTED_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    XIDS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    uuid: str
    name: str
    temperature_c: int
    power_w: float
    utilisation_percent: int
    sm_clock_mhz: int
    memory_total_bytes: int
    memory_used_bytes: int
    memory_reserved_bytes: int
    ecc_corrected: int
    ecc_uncorrected: int
    throttled: _containers.RepeatedScalarFieldContainer[str]
    xids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rank: _Optional[int] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., temperature_c: _Optional[int] = ..., power_w: _Optional[float] = ..., utilisation_percent: _Optional[int] = ..., sm_clock_mhz: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., memory_reserved_bytes: _Optional[int] = ..., ecc_corrected: _Optional[int] = ..., ecc_uncorrected: _Optional[int] = ..., throttled: _Optional[_Iterable[str]] = ..., xids: _Optional[_Iterable[int]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("requested", "deadline_in_s")
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_IN_S_FIELD_NUMBER: _ClassVar[int]
    requested: bool
    deadline_in_s: float
    def __init__(self, requested: _Optional[bool] = ..., deadline_in_s: _Optional[float] = ...) -> None: ...

class DrainProgress(_message.Message):
    __slots__ = ("watcher", "boot_id", "sequence", "proxies_total", "proxies_acknowledged", "drain_deadline_s")
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROXIES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROXIES_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    watcher: str
    boot_id: str
    sequence: int
    proxies_total: int
    proxies_acknowledged: int
    drain_deadline_s: float
    def __init__(self, watcher: _Optional[str] = ..., boot_id: _Optional[str] = ..., sequence: _Optional[int] = ..., proxies_total: _Optional[int] = ..., proxies_acknowledged: _Optional[int] = ..., drain_deadline_s: _Optional[float] = ...) -> None: ...

class DrainAnswer(_message.Message):
    __slots__ = ("waiting",)
    WAITING_FIELD_NUMBER: _ClassVar[int]
    waiting: bool
    def __init__(self, waiting: _Optional[bool] = ...) -> None: ...
