"""Comparing data order contracts: a cache is the same by its content, whatever version of which code made it.

A contract names of each cache its manifest and its content. One of before names the manifest alone. Its content is then read from that
manifest, which is looked for beside the cache that the run has now: in a home, all caches of a component lie in one folder. Where it is
not there any more, the manifests must be the same.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import MANIFEST_NAME, Manifest, read_manifest
from phasewise.trainer.passed_over import CONTRACT_NAME

Contract = Mapping[str, Any]


def with_contents(contract: Contract, run: RunConfig) -> dict[str, Any]:
    """The contract with the content of each cache, where that can be known."""
    components: dict[str, dict[str, Any]] = {}
    for name, cache in contract["components"].items():
        found = None if "content" in cache or name not in run.caches else _find_manifest(run.caches[name], cache["manifest"])
        components[name] = {**cache, "content": found.content} if found else cache
    return {**contract, "components": components}


def compared_by(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """By which name two contracts' accounts of a cache are compared."""
    return "content" if "content" in was and "content" in now else "manifest"


def changed_since(was: Contract, now: Contract, run: RunConfig) -> list[str]:
    """What of its contract has changed since a checkpoint of the run was written, by name.

    What the run passed over since is no change of its order; `trainer.passed_over` compares that.
    """
    if was == now:
        return []
    was = with_contents(was, run)
    return sorted(name for name in {*was, *now} - {CONTRACT_NAME} if _as_compared(was, now, name) != _as_compared(now, was, name))


def _as_compared(contract: Contract, other: Contract, name: str) -> Any:
    """A part of a contract as it is compared with that of another."""
    if name != "components" or name not in contract or name not in other:
        return contract.get(name)
    return {
        component: (cache[compared_by(cache, other[name].get(component, {}))], cache["rows"]) for component, cache in contract[name].items()
    }


def _find_manifest(folder: str, digest: str) -> Manifest | None:
    """The manifest of this digest among those of the cache and its neighbours."""
    for path in sorted(as_path(folder).parent.glob(f"*/{MANIFEST_NAME}")):
        with suppress(DataError):
            manifest = read_manifest(path.parent)
            if manifest.digest == digest:
                return manifest
    return None
