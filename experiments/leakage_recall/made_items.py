"""Synthetic benchmark items: word problems, multiple choice, code and short goals. The same for the same seed."""

from random import Random

from experiments.leakage_recall.made_words import ACTIONS, ADJECTIVES, FIELDS, NAMES, SUBSTANCES, THINGS, VERBS, Writer
from phasewise.validations.evidence.leakage.items import BenchmarkItem


def made_items(per_benchmark: int, seed: int) -> list[BenchmarkItem]:
    makers = {"made-math": _word_problem, "made-choice": _multiple_choice, "made-code": _program, "made-goals": _goal}
    items: list[BenchmarkItem] = []
    for benchmark, make in makers.items():
        write, seen = Writer(Random(f"{seed} {benchmark}")), set[str]()
        while len(seen) < per_benchmark:
            item = make(write, f"{benchmark}-{len(seen)}")
            if item.question not in seen:
                seen.add(item.question)
                items.append(item)
    return items


def _word_problem(write: Writer, identity: str) -> BenchmarkItem:
    rng, (name, other), thing = write.rng, write.rng.sample(NAMES, 2), write.word(THINGS)
    each, days, lost, price = rng.randint(7, 48), rng.randint(2, 19), rng.randint(1, 5), rng.randint(2, 30)
    kind, verb = f"{write.word(ADJECTIVES)} {thing}", write.word(VERBS)
    told = [
        write.any(
            f"{name} {verb} {each} {kind} {write.place()} {write.time()}", f"{write.place()}, {name} {verb} {each} {kind} {write.reason()}"
        ),
        write.any(
            f"{other} takes {lost} of them {write.reason()}",
            f"{write.time()}, {lost} go to {other} {write.place()}",
            f"{other} must have {lost} {write.reason()}",
            f"{write.reason()}, {other} keeps {lost}",
        ),
        write.any(
            f"This goes on for {days} days {write.reason()}",
            f"{write.place()} they do the same {days} times",
            f"All of it happens {days} times {write.time()}",
            f"Nothing changes in {days} weeks {write.place()}",
        ),
    ]
    rng.shuffle(told)
    left, total = each - lost, (each - lost) * days
    asked = write.any(
        f"If what is left sells for {price} dollars apiece {write.place()}, what does {name} earn?",
        f"How much money does {name} make with the remaining {thing} at ${price} each {write.time()}?",
        f"{write.time()}, every one fetches {price} dollars. How rich is {name} then?",
        f"A buyer pays ${price} for each that remains {write.reason()}. What is {name}'s income?",
    )
    lines = [
        write.any(f"{name} has {each} - {lost} =", f"Without {other}'s share there are {each}-{lost} =", f"Each time {each} - {lost} =")
        + f" <<{each}-{lost}={left}>>{left} {write.any(kind, thing)} {write.any('left', 'to sell', write.place(), write.time())}.",
        write.any(
            f"Over {days} turns that makes", f"After all {days} rounds {name} counts", f"{write.place().capitalize()} this adds up to"
        )
        + f" {left} * {days} = <<{left}*{days}={total}>>{total} {write.any(thing, kind, 'pieces')}.",
        write.any(f"{name} therefore earns", f"So the {thing} bring", f"Selling all {write.time()} gives", f"At ${price} {name} collects")
        + f" {total} * {price} = $<<{total}*{price}={total * price}>>{total * price} {write.reason()}.",
        f"#### {total * price}",
    ]
    question = ". ".join(sentence[:1].upper() + sentence[1:] for sentence in [*told, asked])
    return BenchmarkItem("made-math", "made-math", identity, question, (), str(total * price), ("\n".join(lines),))


def _multiple_choice(write: Writer, identity: str) -> BenchmarkItem:
    field, (substance, second) = write.word(FIELDS), write.rng.sample(SUBSTANCES, 2)
    question = write.any(
        f"{write.word(NAMES)} studies {field} and heats {substance} with {second} {write.place()}. What follows {write.time()}?",
        f"In {field}, what happens when {write.word(ADJECTIVES)} {substance} meets {second} {write.place()} {write.reason()}?",
        f"Given that {write.effect()}, which statement about {substance} would be false {write.time()}?",
        f"What does {substance} do to {write.word(ADJECTIVES)} {second}?",
    )
    choices = tuple(write.effect() for _ in range(4))
    return BenchmarkItem("made-choice", field, identity, question, choices, write.rng.choice(choices))


def _program(write: Writer, identity: str) -> BenchmarkItem:
    rng, (thing, other, result) = write.rng, write.rng.sample(THINGS, 3)
    name, limit, step = f"{write.word(ACTIONS)}_{thing}_{write.word(ADJECTIVES)}", rng.randint(2, 90), rng.randint(2, 9)
    asked = write.any(
        f"Give back the {write.thing()} that stand {write.place()} at most {limit} times.",
        f"Of {write.thing()} {write.place()}, {write.word(ACTIONS)} those that {other} outweigh {write.time()}.",
        f"For all {thing}, find {write.thing()} {write.reason()}, {step} at a time.",
    )
    question = (
        f'def {name}({thing}, {other}):\n    """{asked}\n    {write.reason().capitalize()}, leave out {write.thing()} {write.place()}.\n'
    )
    question += f"    >>> {name}([{limit}, {step}, {limit * step}], {rng.randint(0, 999)})\n    {rng.randint(0, 9999)}\n" + '    """\n'
    body = [
        write.any(
            f"{result} = []", f"{result} = {{{other!r}: {limit}}}", f"{result} = set({thing})", f"{result} = {limit} if {other} else {step}"
        ),
        write.any(
            f"for {thing[0]}, {name[:4]} in enumerate({thing}):\n        if {thing[0]} % {step} == {rng.randint(0, 9)}:\n            break",
            f"while len({other}) > {limit}:\n        {other}.pop({step})\n        {thing} = {thing}[{step}:]",
            f"{other} = sorted({thing}, key=lambda {other[0]}: ({other[0]} - {limit}) ** {step})",
            f"assert {thing} != {other}, {write.effect()!r}",
            f"{thing} = [{other} * {limit} + {rng.randint(0, 99)} for {other} in {thing} if {other} not in range({step}, {limit})]",
        ),
        write.any(
            f"print('{write.thing()}', {result}, {limit})",
            f"{result} = dict.fromkeys(map(abs, {thing}), {rng.randint(0, 99)})",
            f"{thing}, {other} = {other}, {thing}[:{limit}]",
            f"# {write.effect()}",
        ),
        write.any(
            f"return {result}", f"return max({thing}, default={limit})", f"return {other} or {result}", f"yield from zip({thing}, {result})"
        ),
    ]
    return BenchmarkItem("made-code", "made-code", identity, question, (), "", ("".join(f"    {line}\n" for line in body),))


def _goal(write: Writer, identity: str) -> BenchmarkItem:
    action, thing = write.word(ACTIONS), write.thing()
    goal = write.any(
        f"How do you {action} {thing}?", f"To {action} {thing} {write.place()}", f"{action.capitalize()} {thing} without {write.thing()}"
    )
    way = write.any(
        f"Rub the {thing} with",
        f"Wait {write.time()}, then use",
        f"{write.place().capitalize()}, press down on",
        f"Wrap all of it {write.reason()} in",
    )
    ways = (f"{way} {write.thing()} {write.reason()}.", f"{way} {write.thing()} {write.reason()}.")
    return BenchmarkItem("made-goals", "made-goals", identity, goal, ways, ways[0])
