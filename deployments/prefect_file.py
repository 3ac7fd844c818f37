"""`python -m phasewise.deployments.prefect_file > prefect.yaml`: the deployments of `phasewise up` for `prefect deploy --all`."""

from importlib.metadata import version
from typing import Any

import yaml

from phasewise.deployments.declared import FLOWS, Source, declare, declare_pools
from phasewise.flows.recipes import NAMES, load_written

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


def main() -> None:
    """Print `prefect.yaml` for the included recipes."""
    sources = [Source(name, load_written(name)) for name in NAMES]
    entries: list[dict[str, Any]] = []
    for deployment in declare(sources):
        place = FLOWS[deployment.flow]
        entry: dict[str, Any] = {
            "name": deployment.name,
            "entrypoint": deployment.entrypoint,
            "description": deployment.description,
            "tags": list(deployment.tags),
            "parameters": dict(deployment.parameters),
            "work_pool": {"name": place.pool, "work_queue_name": place.queue},
        }
        if deployment.schedules:
            entry["schedules"] = [
                {"slug": one.slug, "cron": one.cron, "timezone": one.timezone, "active": False} for one in deployment.schedules
            ]
        entries.append(entry)
    content = {
        "name": "phasewise",
        "prefect-version": version("prefect"),
        "build": [{"prefect.deployments.steps.run_shell_script": {"id": "root", "script": "pwd", "stream_output": False}}],
        "push": [],
        "pull": [{"prefect.deployments.steps.set_working_directory": {"directory": "{{ root.stdout }}"}}],
        "deployments": entries,
    }
    pools = "\n".join(f"#   prefect work-pool create {pool.name} --type process" for pool in declare_pools(sources))
    print(HEAD.format(pools=pools) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120), end="")


if __name__ == "__main__":
    main()
