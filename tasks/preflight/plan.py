"""Execution plans of a phase on its slice: mesh, rematerialization and offloading, parts of the batch, chunks of the loss."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, cast

from pydantic import Field

from phasewise.tasks.preflight.slices import Slice
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, LANES, Execution, Kept, Mesh, ModelConfig, Remat
from phasewise.trainer.config.execution import check_kernel
from phasewise.trainer.preflight.spec import Platform, Spec, StepShape

LOSS_TOKENS_A_CHIP = 2048
"""Tokens whose logits exist at one time on a chip: 1 GiB at Llama 3's vocabulary. Smaller chunks sum the head's gradient more often."""
GIB = 2**30
DENSE_PRODUCTS = {"query", "key", "value", "output", "gate", "up", ATTENTION}  # all inputs of a dense block's backward pass
MAX_TENSOR, MAX_PARTS, MIN_FSDP = 8, 32, 8
MAX_EXPERT, MAX_TENSOR_SPARSE = 16, 2  # limits for experts: more distant devices on the torus are slower
MAX_CONTEXT, MIN_CONTEXT_POSITIONS = 16, 8192  # limits for parts of a row. Shorter rows are numerous, and the batch is divided instead
LOSS_TOKENS = (LOSS_TOKENS_A_CHIP, 4 * LOSS_TOKENS_A_CHIP)
OFFLOADED = ("gate", "up")  # the widest products, the only products worth offloading
SPARSE_GROUPS = (
    (ATTENTION,),
    ("query", "attention_gate"),
    ("key", "value"),
    ("output",),
    ("gate", "up", "down"),
    ("router", "shared_gate", "shared_up", "shared_down"),
)
"""Products of a sparse model that are kept together. Dense layers are few, and the products of experts have no names."""


class Setup(Frozen):
    """A step of a phase on a slice. `stretches` has the start and stop steps of all segments with this slice and batch."""

    phase: str
    slice: str
    stretches: tuple[tuple[int, int], ...]
    step: StepShape

    @property
    def steps(self) -> int:
        """Number of updates."""
        return sum(stop - start for start, stop in self.stretches)

    @property
    def words(self) -> str:
        """Summary for people."""
        return f"{self.phase}, {self.step.batch_sequences:,} sequences on {self.slice}"


def step_shape(phase: Any, batch_sequences: int) -> StepShape:
    """Select the fields of a recipe's phase or a run that decide its compiled step."""
    ever: dict[str, list[Any]] = {}
    for name in ("ema_decay", "max_update_rms", "max_update_norm", "skip_step"):
        values = getattr(phase.stability, name).within(phase.start_step, phase.stop_step)
        ever[name] = [value for _, value in values if value is not None]
    return StepShape(
        model=phase.model,
        optimizer=phase.optimizer,
        batch_sequences=batch_sequences,
        keeps_average=bool(ever["ema_decay"]),
        clips_update_rms=bool(ever["max_update_rms"]),
        update_norm_window=next((limit.window for limit in ever["max_update_norm"]), None),
        skip_step_window=next((limit.window for limit in ever["skip_step"]), None),
        skip_on=ever["skip_step"][0].skip_on if ever["skip_step"] else "loss_and_grad_norm",
        packing=phase.packing,
        loss_on=phase.loss_on,
    )


class Plan(Frozen):
    """The fields of `Execution` that preflight decides. `mesh` None is the mesh by rule, `loss_tokens_a_chip` bounds logits of a chip."""

    remat: Remat
    parts: int = Field(default=1, gt=0)
    mesh: Mesh | None = None
    loss_tokens_a_chip: int = Field(default=LOSS_TOKENS_A_CHIP, gt=0)

    def mesh_on(self, where: Slice) -> Mesh:
        """Return the mesh on a slice."""
        return self.mesh or where.mesh

    @property
    def words(self) -> str:
        """Summary for people without default values."""
        words = [kept_in_words(self.remat)]
        if self.parts > 1:
            words.append(f"gradients over {self.parts} parts")
        if self.mesh:
            words.append(f"mesh {self.mesh.replica} × {self.mesh.fsdp} × {self.mesh.tensor}")
            words += [f"experts over {self.mesh.expert}"] if self.mesh.expert > 1 else []
            words += [f"positions over {self.mesh.context}"] if self.mesh.context > 1 else []
        if self.loss_tokens_a_chip != LOSS_TOKENS_A_CHIP:
            words.append(f"loss of {self.loss_tokens_a_chip:,} tokens at a time")
        return ", ".join(words)


def kept_in_words(remat: Remat) -> str:
    """Describe the kept activations for people."""
    match remat:
        case "none":
            return "everything kept"
        case "dots":
            return "products kept"
        case "full":
            return "blocks computed again"
        case "offload":
            return "blocks computed again, carries offloaded"
        case Kept():
            on_host = ["carries" if name == BLOCK_INPUT else name for name in remat.on_host]
            on_device = set(remat.on_device)
            if not on_device >= DENSE_PRODUCTS:
                on_device = " ".join(remat.on_device)
            else:
                on_device = "all products but the experts', and attention" if "router" in on_device else "products and attention"
            words = [f"{on_device} kept"] if on_device else []
            return ", ".join([*words, f"{' '.join(on_host)} offloaded"] if on_host else words) or "blocks computed again"


def batch_refusal(batch_sequences: int, where: Slice) -> str | None:
    """Return the reason why a batch cannot be divided over a slice's devices, or None."""
    parts = where.devices
    if batch_sequences % parts == 0:
        return None
    below, above = batch_sequences // parts * parts, -(-batch_sequences // parts) * parts
    instead = f"{below:,} or {above:,}" if below else f"{above:,}"
    places = "chips" if where.chip.devices == 1 else "devices"
    return (
        f"a batch of {batch_sequences:,} sequences cannot be cut into equal parts over {where.count} × {where.devices_of_each} = {parts:,} "
        f"{places} of {where.name} ({batch_sequences / parts:.2f} each): {instead} would do, or another slice."
    )


def mesh_refusal(step: StepShape, where: Slice) -> str:
    """Return the reason why no mesh of a sparse model fits its batch and the slice's devices."""
    experts = step.model.experts
    assert experts is not None
    return (
        f"no mesh cuts {experts.num_experts} experts, d_model {step.model.d_model:,} and a batch of {step.batch_sequences:,} sequences "
        f"into equal parts over {where.count} × {where.devices_of_each} devices of {where.name}: take another slice, or another batch."
    )


def spec_for(step: StepShape, where: Slice, plan: Plan, *, machine_code: bool = False) -> Spec:
    """Return the specification for the compiler, with the trainer's `Execution`."""
    tokens = step.batch_sequences // plan.parts * step.model.seq_len
    chunk = plan.loss_tokens_a_chip * where.devices
    mesh = plan.mesh_on(where)
    execution = Execution(
        mesh=mesh,
        remat=plan.remat,
        # "auto" would choose the kernel for this machine
        attention=cast(Any, check_kernel("auto", where.chip.platform, step.model, context=mesh.context)),
        expert_kernel="auto" if step.model.experts is None else ("megablox" if where.chip.platform == "tpu" else "padded"),
        microbatch_sequences=None if plan.parts == 1 else step.batch_sequences // plan.parts,
        loss_chunk_tokens=chunk if chunk < tokens else None,
    )
    return Spec(step=step, execution=execution, topology=where.topology, machine_code=machine_code)


class Setting(NamedTuple):
    """A plan without its remat policy."""

    mesh: Mesh
    parts: int
    loss_tokens_a_chip: int

    def plan(self, remat: Remat, where: Slice) -> Plan:
        """Return the plan with a policy."""
        mesh = None if self.mesh == where.mesh else self.mesh
        return Plan(remat=remat, parts=self.parts, mesh=mesh, loss_tokens_a_chip=self.loss_tokens_a_chip)


def settings_for(step: StepShape, where: Slice) -> list[Setting]:
    """List every setting that mesh, model and batch allow, the mesh by rule first, regardless of memory."""
    found: list[Setting] = []
    for mesh in meshes_for(step.model, where):
        for parts in _powers(MAX_PARTS):
            if step.batch_sequences % (parts * mesh.batch_parts):
                continue
            tokens = step.batch_sequences // parts * step.model.seq_len // where.devices
            found += [
                Setting(mesh, parts, size) for number, size in enumerate(LOSS_TOKENS) if number == 0 or tokens > LOSS_TOKENS[number - 1]
            ]
    return found


def meshes_for(model: ModelConfig, where: Slice) -> list[Mesh]:
    """List the mesh by rule, which a sparse model lacks, then meshes with replicas in a slice, `expert`, `tensor` and `context`."""
    from phasewise.trainer.sharding import check_mesh  # it imports jax

    is_sparse, devices = model.experts is not None, where.devices_of_each
    found = [] if is_sparse else [where.mesh]
    widths = _powers(MAX_TENSOR_SPARSE if is_sparse else MAX_TENSOR)
    for expert, tensor, context in itertools.product(_powers(MAX_EXPERT if is_sparse else 1), widths, contexts_for(model, where)):
        sizes = (model.num_query_heads, model.num_kv_heads, model.d_ff, model.vocab_size)
        if not is_sparse and any(size % tensor for size in sizes):
            continue
        for copies in _powers(devices):
            fsdp, left = divmod(devices, expert * tensor * context * copies)
            parts = fsdp * expert * context
            if left or not fsdp or parts < min(MIN_FSDP, devices // (tensor if is_sparse else 1)):
                continue
            if not is_sparse and model.d_model % parts:
                continue
            mesh = Mesh(replica=where.count * copies, fsdp=fsdp, expert=expert, tensor=tensor, context=context)
            with suppress(ConfigError):
                if is_sparse:
                    check_mesh(mesh, model)
                found += [mesh] if is_sparse or mesh != where.mesh else []
    return found


def contexts_for(model: ModelConfig, where: Slice) -> list[int]:
    """List the possible numbers of parts of a row. The GPU kernel supports only whole rows."""
    if where.chip.platform == "gpu":
        return [1]
    parts = (size for size in _powers(MAX_CONTEXT) if model.seq_len >= size * MIN_CONTEXT_POSITIONS)
    return [1, *(size for size in parts if size > 1 and model.seq_len % (2 * LANES * size) == 0)]


def policies_for(model: ModelConfig, platform: Platform = "tpu") -> Iterator[Remat]:
    """Yield every choice of kept activations. Only a TPU offloads and names attention. Experts' activations are kept only with all."""
    found: list[Kept] = []
    if model.experts is None:
        wide = list(itertools.product(("again", "device", "host"), repeat=len(OFFLOADED)))
        for (attention, query, keys, output, carries), of_wide in itertools.product(itertools.product((False, True), repeat=5), wide):
            device = [ATTENTION] * attention + ["query"] * query + ["key", "value"] * keys + ["output"] * output
            device += [name for name, place in zip(OFFLOADED, of_wide, strict=True) if place == "device"]
            host = [BLOCK_INPUT] * carries + [name for name, place in zip(OFFLOADED, of_wide, strict=True) if place == "host"]
            if device or set(host) - {BLOCK_INPUT}:
                found.append(Kept(on_device=tuple(device), on_host=tuple(host)))
    else:
        from phasewise.trainer.preflight.roofline import products  # it imports jax

        present = {ATTENTION, *products(model)}
        groups = [group for names in SPARSE_GROUPS if (group := [name for name in names if name in present])]
        for chosen, carries in itertools.product(itertools.product((False, True), repeat=len(groups)), (False, True)):
            device = [name for group, is_kept in zip(groups, chosen, strict=True) if is_kept for name in group]
            if device:
                found.append(Kept(on_device=tuple(device), on_host=(BLOCK_INPUT,) if carries else ()))
    if platform == "tpu":
        yield from ("full", "offload") if model.experts is None else ("full", "offload", "none")
        yield from found
    else:
        yield from ("full", "none")
        yield from (one for one in found if not one.on_host and ATTENTION not in one.on_device)


def _powers(limit: int) -> list[int]:
    return [2**power for power in range(limit.bit_length())]
