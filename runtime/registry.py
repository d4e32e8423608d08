"""What is to be served: the registry's keys, their types, defaults and limits, as frozen sections.

`configuration.py` reads files, flags and variables into these. What is "auto" is resolved at load, where the
device is known.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from runtime.notation import as_text, bound_models, parse_address, path_prefix

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
ModelBackend = Literal["torch", "openvino"]
TaskChoice = Literal["auto", "embed", "multi_vector", "rerank", "classify"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["auto", "plain", "json"]

BYTES_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE | re.ASCII)
UNIT_EXPECTED_BELOW = 2**20
"""Fewer bytes than this hold no model: such a number lacks its unit."""


def parse_bytes(size: str | int) -> int:
    """Bytes in a size such as `8GiB`, `512MB`, `1.5 Gi` or `8589934592`. Raises ValueError.

    k, M, G and T are powers of 1000, and with an i of 1024.
    """
    match = BYTES_FORM.fullmatch(str(size).strip())
    if isinstance(size, bool) or match is None:
        raise ValueError(f"{size!r} is no size: write one such as 8GiB or 512MB")
    number, prefix, binary = match.groups()
    exponent = " kmgt".index(prefix.lower()) if prefix else 0
    count = int(float(number) * (1024 if binary else 1000) ** exponent) if prefix else int(float(number))
    if not prefix and count < UNIT_EXPECTED_BELOW:
        raise ValueError(f"{size!r} is a size of {count} bytes: write its unit, such as 8GiB")
    return count


def basename(name: str) -> str:
    """The last part of an id, in lower case: how people name a model when they leave its owner out."""
    return name.rstrip("/").rpartition("/")[2].casefold()


class Section(BaseModel):
    """A part of the registry: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSpec(Section):
    """One model to serve."""

    id: str = Field(min_length=1, description="The id that clients send: a hub id, a folder or a name of your own.")
    source: str | None = Field(
        None,
        description="Where the files are: a hub id, a folder, `package:MODULE/PATH` inside an installed"
        " Python package, or `cache:NAME` among the fetched demo models. Default: the id itself.",
    )
    revision: str | None = Field(None, description="Hub commit or tag to pin.")
    task: TaskChoice = Field("auto", description="What the model does; auto: what its files say.")
    served_name: str | None = Field(None, min_length=1, description="The name shown and answered instead of the id.")
    aliases: tuple[str, ...] = Field((), description="More names that reach this model.")
    dtype: Dtype = Field("auto", description="Weights and arithmetic; auto: fp32 on CPU, bf16 on a GPU.")
    max_batch_tokens: int | None = Field(None, ge=1, description="Most tokens in one batch; default by device.")
    max_length: int | None = Field(None, ge=2, description="Most tokens of one input; default: the model's own.")
    max_num_visual_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens of a picture itself; a larger one is scaled down. Default: the model's own.",
    )
    required: bool = Field(True, description="The server is ready only when every required model is.")
    default: bool = Field(False, description="Answers requests for its task that name no model.")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the checkpoint.")
    accept_token_ids: bool = Field(False, description="Take inputs that are already this model's token ids.")
    prompts: dict[str, str] = Field({}, description="Prompts by name, beside or instead of the model's own.")
    default_prompt: str | None = Field(None, description="Name of the prompt used when a request names none.")
    execution: Literal["auto", "packed", "buckets"] = Field(
        "auto",
        description="packed: no padding, or no model; buckets: padded by at most 10 %; auto: the fastest exact.",
    )
    backend: ModelBackend = Field(
        "torch",
        description="What runs the network. openvino: on CPU, where exact and faster; needs the extra `openvino`.",
    )
    quantize: Literal["none", "int8"] = Field(
        "none", description="int8: 8-bit weights, with openvino only; refused below recall@10 of 0.97 against fp32."
    )
    slo_ms: float = Field(100.0, gt=0, description="How soon an online request should be answered, milliseconds.")
    weight: float = Field(1.0, gt=0, description="Share of the device: of bulk work, and of late online work.")
    priority: int = Field(0, description="Online work of models with a lower number goes first, whatever its due time.")
    max_queue_tokens: int = Field(
        10_000_000, ge=1, description="Waiting tokens in one lane of this model beyond which a new request is refused."
    )
    resident: Literal["always", "on_demand"] = Field(
        "always", description="always: loaded at the start; on_demand: when somebody first asks for it."
    )
    pinned: bool = Field(False, description="Never evicted to make room for another model.")
    idle_ttl_s: float | None = Field(None, gt=0, description="Leaves memory after so many seconds without a request.")

    @model_validator(mode="after")
    def _fits_its_backend(self) -> Self:
        if self.backend == "torch":
            if self.quantize != "none":
                raise ValueError(f"quantize: {self.quantize} needs backend: openvino")
        elif self.dtype not in ("auto", "float32"):
            raise ValueError(f"backend: openvino computes in float32, or int8 with quantize: int8; not in {self.dtype}")
        elif self.execution == "packed":
            raise ValueError("backend: openvino runs padded buckets: leave execution: packed out")
        return self

    @property
    def name(self) -> str:
        """The name shown in `/v1/models` and in answers."""
        return self.served_name or self.id

    @property
    def location(self) -> str:
        """The source, or the id where no source is given."""
        return self.source or self.id

    @property
    def names(self) -> frozenset[str]:
        """Every name that reaches the model exactly."""
        return frozenset((self.id, self.name, *self.aliases))


Secret = Annotated[Annotated[SecretStr, Field(min_length=1)] | None, BeforeValidator(as_text)]


class ServerSettings(Section):
    """The HTTP edge and its limits."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(7997, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    http: Literal["hypercorn", "uvicorn"] = Field("hypercorn", description="HTTP server.")
    max_inputs: int = Field(2048, ge=1, description="Most inputs in one request.")
    max_documents: int = Field(1000, ge=1, description="Most documents that one request may have scored.")
    max_body_bytes: int = Field(64 * 2**20, ge=1024, description="Largest request body, bytes.")
    body_stall_timeout_s: float = Field(60.0, gt=0, description="Longest time without a byte of a request's body.")
    body_timeout_s: float = Field(300.0, gt=0, description="Longest time that a request's whole body may take.")
    max_image_bytes: int = Field(20 * 2**20, ge=1024, description="Largest picture as encoded, bytes.")
    max_image_pixels: int = Field(
        40_000_000, ge=1, le=89_000_000, description="Most pixels of a picture; each takes 4 to 8 bytes to decode."
    )
    allow_image_hosts: tuple[Annotated[str, Field(pattern=r"^([^\s/:@?#\[\]]+|\[[0-9a-fA-F:.]+\])(:\d+)?$")], ...] = (
        Field(
            (),
            description="A host, as NAME or NAME:PORT, whose pictures may be fetched by address; none: no address is.",
        )
    )
    image_fetch_timeout_s: float = Field(10.0, gt=0, description="Longest time that fetching one picture may take.")
    drain_timeout_s: float = Field(60.0, ge=0, description="Longest time that requests in flight get on SIGTERM.")
    drain_delay_s: float = Field(
        0.0, ge=0, description="How long online requests are still taken on SIGTERM, once /ready is red."
    )
    api_key: Secret = Field(None, description="The one key of all clients; better in COTENANT_API_KEY.")
    api_keys: Secret = Field(None, description="Named keys: NAME:KEY,NAME:KEY; better in COTENANT_API_KEYS.")
    keys_file: str | None = Field(None, description="YAML file of named keys, hashed, with what each may do.")
    public_models: bool = Field(False, description="/models and /v1/models answer without a key.")
    public_metrics: bool = Field(False, description="/metrics answers without a key.")
    tracing: bool = Field(False, description="Send OpenTelemetry spans, as OTEL_* say; needs the extra `tracing`.")
    uds: str | None = Field(None, description="Listen on this unix socket instead of host and port.")
    tls_certificate: str | None = Field(None, description="PEM file of the certificate and its chain: HTTPS only.")
    tls_key: str | None = Field(None, description="PEM file of the certificate's private key.")
    url_prefix: Annotated[str, BeforeValidator(path_prefix)] = Field(
        "", description="A path before every route, such as /retrieval; the routes answer without it too."
    )
    bind_model: Annotated[dict[str, str], BeforeValidator(bound_models)] = Field(
        {}, description="More addresses to listen on, each for the requests of one model: `:8082` and a model's name."
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.uds is not None and self.tls_key is not None:
            raise ValueError("a unix socket (uds) needs no TLS: leave tls_certificate and tls_key out")
        return self

    @field_validator("bind_model")
    @classmethod
    def _ports_differ(cls, bound: dict[str, str]) -> dict[str, str]:
        ports = [port for _, port in map(parse_address, bound) if port]
        if len(set(ports)) < len(ports):
            raise ValueError("two addresses have the same port: a port is one model's")
        return bound

    admin_token: SecretStr | None = Field(
        None, description="Who sends it as a bearer token may load and unload models. None: only this machine may."
    )


class LogSettings(Section):
    """What the process says of itself, on standard error."""

    level: LogLevel = Field("info", description="Least severe messages that are logged.")
    format: LogFormat = Field(
        "auto", description="json: one object a line; auto: coloured on a terminal, plain lines elsewhere."
    )


def spec_of_id(entry: object) -> object:
    """A model written as a plain string is its id."""
    return {"id": entry} if isinstance(entry, str) else entry


ModelEntry = Annotated[ModelSpec, BeforeValidator(spec_of_id, json_schema_input_type=ModelSpec | str)]


class RuntimeConfig(Section):
    """Everything the process needs to know, in one place."""

    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="Where models run.")
    memory_budget: str | int | None = Field(
        None, description="Bytes for all models together, such as 8GiB; default: 90 % of the device's memory."
    )
    max_queue_ms: float = Field(30_000.0, gt=0, description="Most predicted wait before a new online request runs, ms.")
    max_bulk_queue_ms: float = Field(120_000.0, gt=0, description="Most predicted wait before new bulk work runs, ms.")
    max_online_ms: float | None = Field(
        10_000.0, gt=0, description="Longest predicted device time, ms, of online work that named no lane; null: any."
    )
    idle_wait_ms: float = Field(0.0, ge=0, description="Hold a lone request this long for company; 0: never.")
    load_wait_s: float = Field(
        30.0, ge=0, description="Longest that a request waits for its model to be loaded, seconds."
    )
    min_residence_s: float = Field(
        10.0, ge=0, description="A model stays at least so long, or 20 times as long as its load took, seconds."
    )
    cpu_lanes: int | None = Field(None, ge=1, description="Batches run side by side on CPU; default: the cores.")
    split_products: bool = Field(
        True, description="On CPUs with AMX, multiply fp32 as parts in bfloat16 where the load-time check allows it."
    )
    tokenizer_threads: int = Field(2, ge=1, description="Threads that tokenize.")
    price_per_hour_usd: float | None = Field(
        None, ge=0, description="Price of one device thread for an hour, to put dollars on requests; none: no dollars."
    )
    server: ServerSettings = Field(default_factory=ServerSettings, description="The HTTP edge and its limits.")
    log: LogSettings = Field(default_factory=LogSettings, description="What the process says of itself.")
    models: tuple[ModelEntry, ...] = Field((), description="The models to serve; a plain string is an id.")

    @field_validator("memory_budget", mode="before")
    @classmethod
    def _is_a_size(cls, size: Any) -> Any:
        if size is not None:
            parse_bytes(size)
        return size

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        owners: dict[str, int] = {}
        for position, spec in enumerate(self.models):
            for name in sorted(spec.names):
                other = owners.setdefault(name, position)
                if other != position:
                    raise ValueError(
                        f"models[{other}] and models[{position}] share the name {name!r}:"
                        " ids, served names and aliases must be unique"
                    )
        return self

    @model_validator(mode="after")
    def _a_task_has_one_default(self) -> Self:
        owners: dict[str, str] = {}
        for spec in self.models:
            if spec.default and spec.task != "auto":
                other = owners.setdefault(spec.task, spec.id)
                if other != spec.id:
                    raise ValueError(f"{other!r} and {spec.id!r} are both the default for {spec.task}: keep one")
        return self

    @model_validator(mode="after")
    def _bound_models_exist(self) -> Self:
        for address, name in self.server.bind_model.items():
            if self.models and self.find(name) is None:
                raise ValueError(f"server.bind_model: {address} is bound to {name!r}, which no model is called")
        return self

    @model_validator(mode="after")
    def _backends_fit_the_device(self) -> Self:
        for position, spec in enumerate(self.models):
            if spec.backend == "openvino" and self.device not in ("auto", "cpu"):
                raise ValueError(f"models[{position}]: backend: openvino runs on the CPU, and device is {self.device}")
        return self

    @property
    def memory_budget_bytes(self) -> int | None:
        """The budget in bytes; None: the device decides."""
        return None if self.memory_budget is None else parse_bytes(self.memory_budget)

    def find(self, name: str) -> ModelSpec | None:
        """The model of that id, served name or alias; else the only one with that last part, in any case."""
        exact = [spec for spec in self.models if name in spec.names]
        if exact:
            return exact[0]
        namesakes = [spec for spec in self.models if name.casefold() in map(basename, spec.names)]
        return namesakes[0] if len(namesakes) == 1 else None
