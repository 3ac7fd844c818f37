"""`python -m phasewise.deployments.prefect_file > prefect.yaml`: the deployments of `phasewise up` for `prefect deploy --all`."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import yaml

from phasewise.deployments.declared import Deployment, Pool, Source, declare, declare_pools
from phasewise.flows.recipes import NAMES

HEAD = """\
# Deployments of the included recipes, printed by `python -m phasewise.deployments.prefect_file`.
#
# `phasewise up` registers the same deployments on this machine, or on your server with PREFECT_API_URL, with more precise forms:
# docs/how-to/prefect.md. Without `phasewise up`, in the folder of the repository:
{pools}
#   prefect work-queue create training --pool local --limit 1
#   prefect --no-prompt deploy --all
#   prefect worker start --pool local      (and one for each other pool)
# The worker's PHASEWISE_HOME is the home. The schedules are inactive examples.
"""


def prefect_file(deployments: Sequence[Deployment], pools: Sequence[Pool]) -> str:
    """Return the text of `prefect.yaml`."""
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


def main() -> None:
    """Print the file for the included recipes."""
    sources = [Source.named(name) for name in NAMES]
    print(prefect_file(declare(sources), declare_pools(sources)), end="")


if __name__ == "__main__":
    main()
