"""What the report of a run has of a sparse phase's routers comes from its metrics, and the limit from its gates."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.resolved import Resolved
from phasewise.flows.status import summary
from phasewise.flows.status.phase_status import PhaseRecord
from phasewise.tasks.home import Home

RECIPE = load_recipe("trinity-nano", "proxy")
ROW = {"loss": 2.0, "learning_rate": 1e-3, "max_violation": 0.5, "dead_experts": 1.0, "router_entropy": 0.9}


def test_the_report_has_what_the_routers_of_each_trained_phase_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summary, "read_baselines", lambda *_: {})
    rows = [{"step": 1, **ROW}, {"step": 2, **ROW, "expert_load/1/0": 0.75, "expert_load/1/1": 0.25}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run: Any = SimpleNamespace(output=str(tmp_path), last_step=1)
    done: dict[str, Any] = {"final_loss": 1.0}
    first, second = RECIPE.phases[:2]
    records = [PhaseRecord(first, run, None, None, done, None, None), PhaseRecord(second, None, None, None, None, None, None)]
    fields = {"recipe": RECIPE, "recipe_name": RECIPE.name, "options": "", "plan": SimpleNamespace(components={}, benchmark_components=())}
    resolved = cast(Resolved, SimpleNamespace(home=Home.open(str(tmp_path / "home")), **fields))
    trained, planned = summary.build_report(resolved, records).phases
    assert trained.routing is not None
    assert trained.routing.max_violation == ((1, 0.5), (2, 0.5))
    assert trained.routing.loads == ((1.5, 0.5),)
    assert trained.routing.limit == first.gates.health.max_violation == pytest.approx(2.1)
    assert planned.routing is None
