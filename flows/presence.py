"""A flow run's process holds a file of that run's for as long as it lives: who is alive is known by that, not by Prefect's rows."""

from contextlib import ExitStack

from phasewise.tasks.holder import holder_of, holding
from phasewise.tasks.home import Home

_held = ExitStack()
_present: set[str] = set()


def stay_present(home: Home, flow_run_id: str, name: str) -> None:
    """Hold the file of a flow run until this process ends, however it does; a run that it holds already is not held twice."""
    if flow_run_id not in _present:
        _held.enter_context(holding(home.presence(flow_run_id), f"flow run '{name}'"))
        _present.add(flow_run_id)


def is_present(home: Home, flow_run_id: str) -> bool | None:
    """Whether a process is at work on the flow run; None where none has ever said so in this home."""
    place = home.presence(flow_run_id)
    if not place.exists():
        return None
    return holder_of(place) is not None


def forget_all_but(kept: set[str], home: Home) -> None:
    """Delete the files of flow runs that are over: of those that are not kept, and that no process is working on."""
    for place in home.presence("any").parent.glob("*.lock"):
        if place.stem not in kept and holder_of(place) is None:
            place.unlink(missing_ok=True)
