import os
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from phasewise.tasks.preflight import launcher
from phasewise.tasks.preflight.launcher import DECIDING, digest_of, versions
from phasewise.tasks.preflight.plan import Plan, spec_for
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.base.identity import code_digest, digest_of_json
from phasewise.trainer.config import ModelConfig, RunConfig, without_added
from phasewise.trainer.config.run import ADDED_LATER
from tests.trainer.conftest import MakeRun
from tests.trainer.preflight.models import LLAMA_8B, step_of

OF_MODELS = ADDED_LATER.keys() & ModelConfig.model_fields.keys()


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(kind):
        yield from models_in(part)


def off(model: ModelConfig) -> ModelConfig:
    return model.but(attend_within_documents=False)


def test_a_name_in_the_table_is_one_field_that_has_that_value_by_default():
    for name, value in ADDED_LATER.items():
        [owner] = {model for model in models_in(RunConfig) if name in model.model_fields}
        assert owner.model_fields[name].default == value


def test_a_run_of_before_keeps_its_digest(make_run: MakeRun, model: ModelConfig):
    run = make_run("before")
    left_out = {"execution", "instrumentation", "evaluation", "until_step", "verdict", "output", "caches", "cache_digests"}
    settings = run.model_dump(mode="json", exclude=left_out)
    for name in OF_MODELS:
        del settings["model"][name]
    del settings["recovery"], settings["packing"], settings["loss_on"]
    del settings["order"]["buffer_documents"], settings["order"]["buffer_over"]
    assert run.digest == digest_of_json({**settings, "caches": run.caches})
    written = run.model_dump(mode="json")
    for name in OF_MODELS:
        del written["model"][name]
    assert RunConfig.model_validate(written) == run
    other = make_run("before", model=off(model))
    assert other.digest != run.digest


def test_a_compilation_of_before_keeps_its_spec(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launcher, "version", lambda name: f"{name} 1")

    def digest(model: ModelConfig) -> str:
        return digest_of(spec_for(step_of(model, 1024), find_slice("2x v5e-256"), Plan(remat="full")))

    on = digest(LLAMA_8B)
    assert digest(off(LLAMA_8B)) != on
    spec = spec_for(step_of(LLAMA_8B, 1024), find_slice("2x v5e-256"), Plan(remat="full")).model_dump(mode="json")
    for name in OF_MODELS:
        del spec["step"]["model"][name]
    del spec["step"]["packing"], spec["step"]["loss_on"], spec["step"]["skip_on"]
    del spec["execution"]["expert_kernel"], spec["execution"]["mesh"]["expert"], spec["execution"]["mesh"]["context"]
    for work in ("step", "save", "restore"):
        del spec["execution"][f"{work}_stall_seconds"]
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    assert on == digest_of_json({"spec": spec, "versions": versions(), "flags": flags, "code": code_digest(*DECIDING)})


def test_only_the_value_of_before_is_left_out():
    component_of_that_name = {"mixture": [[0, {"attend_within_documents": 1.0}]]}
    assert without_added(component_of_that_name) == component_of_that_name
    settings = [{"model": {"attend_within_documents": True, "d_model": 4}}, {"model": {"attend_within_documents": False}}]
    assert without_added(settings) == [{"model": {"d_model": 4}}, {"model": {"attend_within_documents": False}}]
