"""A pin: a finished cache that a recipe wants used, by its place and its digest."""

from pydantic import Field, field_validator

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.secrets import check_no_secret
from phasewise.trainer.data.manifest import Split


class Pin(Frozen):
    """The cache in this folder, whose manifest must have this digest, is the component's. It is checked like any other cache.

    Attributes:
        component, split: which of the recipe's caches it is used as.
        url: the cache's folder, local or an fsspec URL.
        digest: the digest in its manifest, as `phasewise data prepare --json` gives it.
    """

    component: str = Field(min_length=1)
    split: Split
    url: str = Field(min_length=1)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")

    @field_validator("url")
    @classmethod
    def _carries_no_secret(cls, url: str) -> str:
        check_no_secret(url, "url")
        return url
