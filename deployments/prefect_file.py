"""`python -m phasewise.deployments.prefect_file` writes `prefect.yaml`: what `phasewise up` registers, for `prefect deploy --all`."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from phasewise.deployments.declared import Deployment, Pool, Source, declare, declare_pools
from phasewise.flows.recipes import NAMES
from phasewise.trainer.base.identity import HOUSE

PREFECT_FILE = HOUSE.parent / "prefect.yaml"
HEAD = """\
# What can be started from Prefect. Made from the recipes by `python -m phasewise.deployments.prefect_file`; do not edit it.
#
# `phasewise up` registers all of it on this machine, and, with PREFECT_API_URL, on a server of yours, with narrower forms than this file
# can express: docs/how-to/prefect.md. With Prefect alone, in this folder:
{pools}
#   prefect work-queue create training --pool local --limit 1
#   prefect --no-prompt deploy --all
#   prefect worker start --pool local      (and one for each other pool)
# The home is the worker's PHASEWISE_HOME. The schedules are examples, and inactive.
"""


def prefect_file(deployments: Sequence[Deployment], pools: Sequence[Pool]) -> str:
    """The text of the file."""
    content: dict[str, Any] = {
        "name": "phasewise",
        "prefect-version": version("prefect"),
        "build": [{"prefect.deployments.steps.run_shell_script": {"id": "root", "script": "pwd", "stream_output": False}}],
        "push": [],
        "pull": [{"prefect.deployments.steps.set_working_directory": {"directory": "{{ root.stdout }}"}}],
        "deployments": [_entry(deployment) for deployment in deployments],
    }
    head = HEAD.format(pools="\n".join(f"#   prefect work-pool create {pool.name} --type process" for pool in pools))
    return head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def _entry(deployment: Deployment) -> dict[str, Any]:
    pool, queue = deployment.place
    entry: dict[str, Any] = {
        "name": deployment.name,
        "entrypoint": deployment.entrypoint,
        "description": deployment.description,
        "tags": list(deployment.tags),
        "parameters": dict(deployment.parameters),
        "work_pool": {"name": pool, "work_queue_name": queue},
    }
    if deployment.schedules:
        entry["schedules"] = [
            {"slug": one.slug, "cron": one.cron, "timezone": one.timezone, "active": False} for one in deployment.schedules
        ]
    return entry


def main(path: Path = PREFECT_FILE) -> None:
    """Write it."""
    sources = [Source.named(name) for name in NAMES]
    path.write_text(prefect_file(declare(sources), declare_pools(sources)), encoding="utf-8")


if __name__ == "__main__":
    main()
