"""Flow runs at their creation: their names, and the check of their parameters before the server stores them."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phasewise.flows.prefect.server import TAG
from phasewise.flows.recipes import load_target, load_written, split_target
from phasewise.trainer.base.errors import ConfigError, PhasewiseError
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.base.wording import near

FIXED = ("recipe", "phase", "scale")  # parameters that a run must share with its deployment
FILE = re.compile(r"^(?:.*/)?([^/]+)\.(?:json|py)")
GENERATED = re.compile(r"[a-z]+[0-9]*(-[a-z]+){1,2}|[A-Z][a-z]+-[A-Z][^ ]*( [A-Z][^ ]*)*")
"""Names that Prefect and its pages generate: `elegant-grouse`, `rho5-bayliss`, `Incredible-Krait`."""
SUBMISSION = re.compile(r"/api/deployments/([0-9a-f-]{36})/(?:create_flow_run(?:/bulk)?|schedules(?:/[0-9a-f-]{36})?)/?")


def subject_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return recipe and scale of a flow run, and the phase if the run has one: its place on the page."""
    recipe = FILE.sub(r"\1", split_target(str(given.get("recipe")))[0])
    return (recipe, str(given.get("scale", "proxy")), *([given["phase"]] if given.get("phase") else []))


def run_name(work: str, given: Mapping[str, Any]) -> str:
    """Return the name of a flow run: `marin-8b/ocelot · proxy` for training, `evaluate marin-8b/ocelot · proxy` for another function."""
    verb = work.partition("_")[0]
    recipe, scale, *phase = subject_of(given)
    until = f" up to {given['up_to']}" if given.get("up_to") else ""
    return f"{'' if verb == 'train' else f'{verb} '}{'/'.join([recipe, *phase])}{until} · {scale}"


def check_fixed(name: str, fixed: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Compare the parameters of a run with its deployment's. Raises ConfigError if the run has another recipe, phase or scale."""
    for parameter in FIXED:
        if parameter in fixed and given.get(parameter) != fixed[parameter]:
            raise ConfigError(
                f"the deployment {name} is for {parameter} {fixed[parameter]!r}, and this run was given {given.get(parameter)!r}: "
                f"leave {parameter} out, or start the deployment of that {parameter}. `phasewise up --recipes FOLDER` makes deployments of "
                "other recipes."
            )


def check_parameters(deployment: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check a new run: names, choices of the form, recipe and settings. Prefect checks types. Raises PhasewiseError."""
    name, fixed, form = deployment["name"], deployment["parameters"], deployment["parameter_openapi_schema"]
    fields = form["properties"]
    for parameter, value in given.items():
        if parameter not in {*fields, *fixed}:
            raise ConfigError(f"the deployment {name} has no parameter {parameter!r}, {near(parameter, list(fields))}")
        field = fields.get(parameter, {})
        choices = field.get("enum") or field.get("items", {}).get("enum") or ()
        for one in value if isinstance(value, list) else [value]:
            if choices and one not in choices:
                raise ConfigError(f"{parameter}: expected a choice of the form, found {one!r}, {near(str(one), choices)}")
    complete = {**{parameter: field["default"] for parameter, field in fields.items() if "default" in field}, **fixed, **given}
    check_fixed(name, fixed, complete)
    if missing := [parameter for parameter in form.get("required", ()) if parameter not in complete]:
        raise ConfigError(f"the deployment {name} needs the {missing[0]}: choose it in the form.")
    settings = complete.get("settings", ())
    if not isinstance(settings, list | tuple) or not all(isinstance(one, str) for one in settings):
        return
    from phasewise.flows.checks import check_slices
    from phasewise.flows.recipes.assignments import forked, setting
    from phasewise.flows.recipes.feasibility import check_mixtures
    from phasewise.flows.status.retraining import check_named, phases_to_train

    wanted, work = complete.get("phase") or complete.get("up_to"), str(deployment["entrypoint"]).rpartition(".")[2]
    with setting(settings):
        recipe, last = load_target(f"{complete['recipe']}/{wanted}" if wanted else complete["recipe"], complete.get("scale", "proxy"))
        if (written := load_written(complete["recipe"])).scale == "full":
            full = forked(written).with_branch(wanted)
            check_mixtures(full, full.phases)
        if work == "train_phase":
            check_slices(recipe, [recipe.phase(complete["phase"])])
        elif work == "train_recipe":
            phases = phases_to_train(recipe, last)
            for option in ("retrain", "extend"):
                check_named(complete.get(option, ()), phases, f"--{option}")
            check_slices(recipe, phases)
        elif work == "try_phase":
            from phasewise.flows.experiments.arms import plan_experiment

            target = f"{complete['recipe']}/{wanted}"
            plan_experiment(target, complete.get("scale", "proxy"), complete.get("home"), complete["arms"], 1, complete.get("control"))


@dataclass
class CheckedSubmissions:
    """ASGI middleware that checks and names new flow runs and schedules of our deployments. Wrong parameters answer 422."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to the application, or reject it."""
        found = SUBMISSION.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] in ("POST", "PATCH") else None
        if found is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        try:
            body = await self._checked(found[1], request, body)
        except PhasewiseError as refusal:
            await JSONResponse({"detail": str(refusal)}, 422)(scope, receive, send)
            return
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        headers = [(name, str(len(body)).encode() if name == b"content-length" else value) for name, value in scope["headers"]]

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        await self.app({**scope, "headers": headers}, replay, send)

    async def _checked(self, deployment_id: str, request: Request, body: bytes) -> bytes:
        from prefect.utilities.schema_tools.hydration import Placeholder, hydrate

        try:
            runs = parse_json(body)
        except ValueError:
            return body
        of_runs = "create_flow_run" in request.url.path
        wanted = [one for one in (runs if isinstance(runs, list) else [runs]) if isinstance(one, dict) and (of_runs or "parameters" in one)]
        typed = all(isinstance(one.get("parameters") or {}, dict) and isinstance(one.get("name") or "", str) for one in wanted)
        if not wanted or not typed:
            return body  # the application rejects wrong types
        shown = {name: value for name, value in request.headers.items() if name == "authorization"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=f"http://{request.url.netloc}") as client:
            answer = await client.get(f"/api/deployments/{deployment_id}", headers=shown)
        deployment: dict[str, Any] = answer.json() if answer.status_code == 200 else {"tags": ()}
        if TAG not in deployment["tags"] or not (entrypoint := str(deployment["entrypoint"])).startswith("phasewise.flows."):
            return body
        for run in wanted:
            given = hydrate(run.get("parameters") or {})
            if not any(isinstance(value, Placeholder) for value in given.values()):
                await asyncio.to_thread(check_parameters, deployment, given)
            if of_runs:
                run["enforce_parameter_schema"] = True
                if GENERATED.fullmatch(run.get("name") or "a-b"):
                    run["name"] = run_name(entrypoint.rpartition(".")[2], {**deployment["parameters"], **given})
        return json.dumps(runs).encode()
