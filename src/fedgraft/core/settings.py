"""How clients train and what the server takes of it: one definition for flags, files, Python and the core.

The command line reads this module before anything is asked for, so it imports nothing heavy.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from fedgraft.base.errors import UserError
from fedgraft.base.registry import Registry
from fedgraft.core.schedules import SCHEDULES, schedule

OPTIMIZERS: Registry[Any] = Registry(
    "optimizer", "fedgraft.core.optimizer", group="fedgraft.optimizers", base="fedgraft.core.optimizer:Optimizer"
)
STAGES: Registry[Any] = Registry(
    "stage", "fedgraft.core.bound", "fedgraft.core.averaging", "fedgraft.core.compression", "fedgraft.core.secure",
    group="fedgraft.stages", base="fedgraft.core.stages:Stage",
)  # fmt: skip
TASKS: Registry[Any] = Registry("task", "fedgraft.core.task", group="fedgraft.tasks", base="fedgraft.core.task:Task")
METRICS: Registry[Any] = Registry(
    "metric", "fedgraft.core.metrics", group="fedgraft.metrics", base="fedgraft.core.metrics:Metric"
)
DELTA, SAMPLE_CLIP, FEATURE_CLIP, CLIENT_CLIP = 1e-5, 1.0, 5.0, 1.0
BOUND = "bound"
"""The stage that is there in every run: the safety net."""


class Settings(BaseModel):
    """Settings: none but those that there are, none changed, no number that is none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"is not a thing to switch on or off, so not {str(value).lower()}")
        return value


class Training(Settings):
    """Training, and what the server takes of it; the same for every method of a comparison."""

    lr: float = Field(0.02, gt=0, le=1e6, description="learning rate")
    optimizer: str = Field("sgd", description="optimizer of local training: sgd, adam, adamw (adam:beta2=0.99)")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, le=1e6, description="weight decay")
    schedule: str = Field(
        "constant", description="learning rate over rounds: constant, exponential:FACTOR, step:EVERY,FACTOR, cosine"
    )
    epochs: float = Field(2.0, ge=0, description="local epochs in each round; 0.5 is half of the batches")
    steps: int | None = Field(None, ge=1, description="local steps in each round, instead of epochs")
    batch_size: int = Field(32, ge=1, le=10**9, description="samples in a batch")
    drop_last: bool = Field(False, description="leave out a last batch that is smaller than the others")
    clip_norm: float | None = Field(None, gt=0, description="clip gradients to this norm")
    optimizer_state: Literal["fresh", "kept"] = Field(
        "fresh", description="the optimizer's state (momentum) starts from zero in each round (fresh), or is kept"
    )
    buffers: Literal["average", "local", "keep"] = Field(
        "average", description="BatchNorm statistics: averaged, local to each client, or kept at their initial values"
    )
    epsilon: float | None = Field(
        None, ge=0.01, le=100, description="differential privacy of each client's samples: the budget of the whole run"
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description=f"delta of differential privacy (default {DELTA:g}, where there is privacy)"
    )
    noise: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="noise of private training as a multiple of sample_clip (default: what epsilon needs)",
    )
    sample_clip: float | None = Field(
        None, gt=0, description=f"each sample's gradient is clipped to this norm (default {SAMPLE_CLIP:g}, as delta)"
    )
    feature_clip: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description=f"for prototypes, a sample's features are clipped to this (default {FEATURE_CLIP:g}, as delta)",
    )
    client_epsilon: float | None = Field(
        None, ge=0.01, le=100, description="differential privacy of whole clients: the budget of the whole run"
    )
    client_noise: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="noise in the sum of updates as a multiple of client_clip (default: what client_epsilon needs)",
    )
    client_clip: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description=f"each client's update is clipped to this norm (default {CLIENT_CLIP:g}, as delta)",
    )
    client_quantile: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="adapt client_clip to this quantile of the updates' norms (default: it is fixed)",
    )
    stages: tuple[str, ...] = Field(
        (BOUND,),
        description="steps applied to messages on their way, in this order: float16, int8, topk:SHARE; to replies that "
        "arrive: bound:norm=1e9,factor=10 (always active), against hostile clients median, trimmed:SHARE, clip:NORM; "
        "secure: the server gets only the sum of the replies",
    )

    @field_validator("schedule")
    @classmethod
    def _schedule_text(cls, value: str) -> str:
        if SCHEDULES.split(value)[0] in SCHEDULES.shipped:  # nobody's own code is imported only to read a file
            schedule(value)
        return known(SCHEDULES, value)

    @field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, value: str) -> str:
        return known(OPTIMIZERS, value)

    @field_validator("stages", mode="before")
    @classmethod
    def _known_stages(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError("are texts such as float16 or topk:0.1")
        named = tuple(known(STAGES, text) for text in texts)
        return named if any(STAGES.split(text)[0] == BOUND for text in named) else (BOUND, *named)

    @model_validator(mode="after")
    def _no_momentum_for_others(self) -> Self:
        if "momentum" in self.model_fields_set and self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum is a setting of the optimizer sgd, not of {self.optimizer}")
        if self.optimizer != "sgd":  # written down, it says what is so, and can be read again
            self.__dict__["momentum"] = 0.0
        return self

    @model_validator(mode="after")
    def _private_or_not(self) -> Self:
        if self.delta is not None and not (self.private or self.client_private):
            raise ValueError("delta is a setting of differential privacy: name epsilon or noise too")
        lone = [name for name in ("sample_clip", "feature_clip") if getattr(self, name) is not None]
        if lone and not self.private:
            raise ValueError(f"{lone[0]} is a setting of differential privacy: name epsilon or noise too")
        lone = [name for name in ("client_clip", "client_quantile") if getattr(self, name) is not None]
        if lone and not self.client_private:
            raise ValueError(f"{lone[0]} is a setting of clients' privacy: name client_epsilon or client_noise too")
        if self.private or self.client_private:  # written down, it says what is so
            self.__dict__["delta"] = self.delta or DELTA
        if self.private:
            self.__dict__["sample_clip"] = self.sample_clip or SAMPLE_CLIP
            self.__dict__["feature_clip"] = self.feature_clip or FEATURE_CLIP
        if self.client_private:
            self.__dict__["client_clip"] = self.client_clip or CLIENT_CLIP
        return self

    @property
    def private(self) -> bool:
        """Whether clients train with differential privacy of their samples."""
        return self.epsilon is not None or self.noise is not None

    @property
    def client_private(self) -> bool:
        """Whether what clients send is clipped and noised, with differential privacy of whole clients."""
        return self.client_epsilon is not None or self.client_noise is not None

    def but(self, **changes: Any) -> Self:
        """Return these settings with some changed, for a method that is only itself with others."""
        return self.model_copy(update=changes)

    @property
    def plain(self) -> Self:
        """These settings with plain SGD: no momentum, no clipping."""
        return self.but(optimizer="sgd", momentum=0.0, clip_norm=None, optimizer_state="fresh")

    def factor(self, round: int, rounds: int) -> float:
        """What the schedule makes of a learning rate in a round."""
        return schedule(self.schedule).at(round, rounds)


def known(registry: Registry[Any], text: str) -> str:
    """Refuse a name that stands for nothing, before anything heavy is imported."""
    try:
        registry.insist(text)
    except UserError as error:
        raise ValueError(f"names what is not there: {error}") from None
    return text.strip()
