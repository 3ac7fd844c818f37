"""The claims as a page that people read. Worked out from the claims alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from phasewise.tasks.publication.card.gate_claims import ruling_word

README_NAME = "README.md"
SHOWN_DIGITS = 16


def build_readme(claims: Mapping[str, Any]) -> str:
    """The page, in Markdown."""
    return "\n".join([*_head(claims), *_lineage(claims), *_mixtures(claims), *_results(claims), *_verdicts(claims), *_data(claims), ""])


def build_model_card(origin: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """The page of an exported folder, in Markdown with the fields that the hub reads at its head.

    Args:
        origin: which weights the folder holds.
        claims: what a home says of the phase; a part that is missing there is named as missing.
    """
    parts = {"lineage": _lineage, "mixture": _mixtures, "evaluation": _results, "gates": _verdicts, "data": _data}
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "---", ""]
    if claims.get("training"):
        lines += _head(claims)
    else:
        lines += [f"# {origin['recipe']}/{origin['phase']}"]
    lines += ["", _which_weights(origin)]
    missing: list[str] = []
    for name, part in parts.items():
        if claims.get(name) and (name != "mixture" or claims.get("order")):
            lines += part(claims)
        else:
            missing.append({"gates": "verdicts"}.get(name, name))
    if missing:
        lines += ["", f"When this was exported, nothing was known of: {', '.join(missing)}."]
    return "\n".join([*lines, ""])


def _which_weights(origin: Mapping[str, Any]) -> str:
    steps = origin["steps"]
    words = {
        "last": f"These are the weights after step {origin['step']:,}",
        "ema": f"These are the moving average of the weights at step {origin['step']:,}; the scores below are of the last weights",
    }
    average = (
        f"These are the mean of the weights at steps {', '.join(f'{step:,}' for step in steps)}; the scores below are of the last weights"
    )
    return f"{words.get(origin['weights'], average)}. They are stored as {origin['dtype']}."


def _head(claims: Mapping[str, Any]) -> Iterator[str]:
    training = claims["training"]
    settings = training["settings"]
    model = settings["model"]
    yield f"# {claims['recipe']}/{claims['phase']}"
    yield ""
    yield (
        f"A decoder with {model['num_layers']} layers and d_model {model['d_model']}, trained at {claims['scale']} scale from step "
        f"{settings['start_step']:,} to step {settings['stop_step']:,} on {training['tokens']:,} tokens{_counted(training)}. Its last "
        "checkpoint is of "
        f"{training['finished']}; the loss was {training['final_loss']:.4f} nats a token over the last 10 updates."
    )
    yield ""
    yield f"Weights `{training['params_digest'][:SHOWN_DIGITS]}`, run `{training['run_digest'][:SHOWN_DIGITS]}`, seed {settings['seed']}."
    licence = claims.get("said", {}).get("licence")
    yield f"Licence, as its author says: {licence}." if licence else "No licence is stated."


def _counted(training: Mapping[str, Any]) -> str:
    """How many of its tokens were predicted, where not all were."""
    counted = training.get("counted_tokens")
    return "" if counted is None else f", padding included, of which {counted:,} were predicted"


def _lineage(claims: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Lineage", "", "| phase | steps | starts from | made new | weights it left |", "|---|---|---|---|---|")
    for one in claims["lineage"]:
        start = one["start"]
        origin = f"{start['parent']} at step {start['step']:,}" if start else f"seed {one['seed']}"
        fresh = ", ".join(start["fresh"]) if start and start["fresh"] else "–"
        steps = f"{one['start_step']:,} to {one['left_at_step']:,}"
        yield f"| {one['phase']} | {steps} | {origin} | {fresh} | `{one['params_digest'][:SHOWN_DIGITS]}` |"
    yield from _changes(claims)


def _changes(claims: Mapping[str, Any]) -> Iterator[str]:
    """What the phase changed at its start."""
    changes = claims.get("hand_off", {}).get("changes", {})
    named = [f"{name} ({one['before']} → {one['after']})" for name, one in changes.items() if one["found"]]
    if claims["lineage"][-1]["start"] and named:
        yield ""
        yield f"Changed at its start: {'; '.join(named)}."


def _mixtures(claims: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Mixture", "", "| from step | component | percent of sequences |", "|---|---|---|")
    for step, shares in claims["mixture"]["at_step"].items():
        for name, share in sorted(shares.items(), key=lambda item: -item[1]):
            yield f"| {int(step):,} | {name} | {share:.4g} |"
    order = claims["order"]
    rows = f" Rows are filled from buffers of {order['buffer']['documents']:,} documents." if "buffer" in order else _packing(order)
    yield ""
    yield (
        f"Order: {order['permutation']['kind']} permutation, seed {order['seed']}, shares exact within blocks of "
        f"{order['block_sequences']:,} sequences of {order['seq_len']:,} tokens.{rows}"
    )


def _packing(order: Mapping[str, Any]) -> str:
    """What is special of its rows; nothing where all text is cut into full rows and all of it is predicted."""
    packed = {
        "pad": " Each document has a row of its own, and is cut after the row's length.",
        "greedy": " Rows have whole documents, as long as they fit, and what is longer than a row is cut.",
    }
    answers = " Answers alone were predicted." if order.get("loss_on") == "answers" else ""
    return f"{packed.get(order.get('packing', ''), '')}{answers}"


def _results(claims: Mapping[str, Any]) -> Iterator[str]:
    evaluation = claims["evaluation"]
    yield from (
        "",
        "## Evaluation",
        "",
        "| benchmark | metric | value | standard error | items | dumb baseline |",
        "|---|---|---|---|---|---|",
    )
    for name, one in evaluation["results"].items():
        yield f"| {name} | {one['metric']} | {one['value']:.4f} | {one['stderr']:.4f} | {one['items']} | {one['baseline']:.4f} |"
    yield ""
    average, mean = evaluation["ema_macro_bits_per_byte"], evaluation["mean_macro_bits_per_byte"]
    moving = "" if average is None else f"; of the moving average {average:.4f}"
    moving += "" if mean is None else f"; of the mean of the last {len(evaluation['mean_of_steps'])} checkpoints {mean:.4f}"
    count = len(evaluation["bits_per_byte"])
    yield f"Bits per byte on held-out text, mean of {count} components: {evaluation['macro_bits_per_byte']:.4f}{moving}."


def _verdicts(claims: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Verdicts", "", "| verdict on its | says | checks passed | warned or accepted | failed |", "|---|---|---|---|---|")
    words = {"data": "data", "health": "training", "model": "model"}
    for name, gate in claims["gates"].items():
        outcomes = [(check["outcome"], check["severity"]) for check in gate["checks"]]
        passed = sum(outcome == "passed" for outcome, _ in outcomes)
        warned = sum(outcome == "accepted" or (outcome == "failed" and severity == "warning") for outcome, severity in outcomes)
        says = {"passes": "passes", "approved": "**fails, and a person let it pass**"}.get(ruling_word(gate), "**fails**")
        says = "passes with warnings that a person let pass" if gate["passes"] and ruling_word(gate) == "approved" else says
        yield f"| {words.get(name, name)} | {says} | {passed} | {warned} | {len(outcomes) - passed - warned} |"
    for name, gate in claims["gates"].items():
        if decision := gate.get("decision"):
            word = "let pass" if decision["approves"] else "rejected"
            when = decision["when"][:10]
            yield ""
            who, why = _plain(decision["who"]), _plain(decision["reason"])
            yield f"The verdict on its {words.get(name, name)} was {word} by {who} on {when}: {why}"


def _plain(text: str) -> str:
    """What a person wrote, which is no markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|" else letter for letter in text)


def _data(claims: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Data", "", "| component | source files | documents | tokens | cache |", "|---|---|---|---|---|")
    for name, cache in claims["data"].items():
        manifest = cache["manifest"]
        digest = cache["manifest_digest"][:SHOWN_DIGITS]
        yield f"| {name} | {len(manifest['sources'])} | {manifest['documents']:,} | {manifest['tokens']:,} | `{digest}` |"
    for name, cache in claims["data"].items():
        yield from _made_of(name, cache["manifest"])


def _made_of(name: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """What is special of a component's text: who wrote it around messages, and which documents were not taken."""
    if template := manifest.get("template"):
        marked = ", which marks the answers" if manifest["shards"][0]["spans"] is not None else ""
        yield ""
        yield f"{name} has conversations, put into text by the chat template `{template[:SHOWN_DIGITS]}`{marked}."
    if bias := manifest["source"].get("length_bias"):
        yield ""
        yield (
            f"Of {name} documents were taken by their length: {100 * bias['ceiling']:g} % from {bias['full_tokens']:,} tokens on, of "
            f"shorter ones in proportion to their length, and at least {100 * bias['floor']:g} %."
        )
