"""Who is told that a phase is refused, or waits for a person: an automation of Prefect's that sends through one of its notification blocks.

The block is made in the UI (Blocks: a webhook, Slack, Teams, and `Mail`, which is ours), and named by `phasewise up --notify TYPE/NAME` or
by Prefect's variable `phasewise_notify`.
"""

from datetime import timedelta
from typing import Any

from phasewise.tasks.report.contents import GATE_EVENTS, GATE_RESOURCE
from phasewise.trainer.base.errors import ConfigError

AUTOMATION = "phasewise: a phase is refused or waits for a person"
VARIABLE = "phasewise_notify"
BODY = "{{ event.payload.message }}\n{{ event.payload.link }}"


async def register_notification(client: Any, block: str | None) -> str | None:
    """Make the automation send through this block, or, where none is named, through that of the variable; the block that is used.

    The automation is known by its name: a second call changes it and makes no other. Without a block it is taken away.

    Raises:
        ConfigError: the block is not named as TYPE/NAME, or there is none.
    """
    from phasewise.flows.prefect.email_block import Mail  # it imports prefect

    await Mail.aregister_type_and_schema(client=client)
    wanted = block or await _variable(client)
    found = await client.read_automations_by_name(AUTOMATION)
    kept, others = found[:1] if wanted else [], found[1:] if wanted else found
    for one in others:
        await client.delete_automation(one.id)
    if wanted is None:
        return None
    block_id = (await _block(client, wanted)).id
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    trigger = EventTrigger(
        expect=set(GATE_EVENTS.values()),
        match={"prefect.resource.id": f"{GATE_RESOURCE}.*"},  # pyright: ignore[reportArgumentType]  # it is made a specification
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
    action = SendNotification(block_document_id=block_id, subject="{{ event.payload.subject }}", body=BODY)
    automation = AutomationCore(name=AUTOMATION, description="Made by `phasewise up`.", trigger=trigger, actions=[action])
    if kept:
        await client.update_automation(kept[0].id, automation)
    else:
        await client.create_automation(automation)
    return wanted


async def _variable(client: Any) -> str | None:
    variable = await client.read_variable_by_name(VARIABLE)
    return str(variable.value) if variable and variable.value else None


async def _block(client: Any, wanted: str) -> Any:
    from prefect.exceptions import ObjectNotFound

    kind, _, name = wanted.partition("/")
    if not kind or not name:
        raise ConfigError(f"--notify needs a block as TYPE/NAME, such as custom-webhook/gates, found {wanted!r}.")
    try:
        return await client.read_block_document_by_name(name, kind, include_secrets=False)
    except ObjectNotFound:
        raise ConfigError(
            f"--notify names the block {wanted}, and the Prefect server has none: make it in the UI (Blocks), or name another."
        ) from None
