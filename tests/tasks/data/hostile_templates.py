"""Templates that take all time or memory. Run as a module, it prints what comes of each, as JSON lines."""

import json
import os
import resource
import sys
import time
from pathlib import Path

from phasewise.tasks.data.conversation import Message
from phasewise.tasks.data.renderer import renderer
from phasewise.tasks.data.template import ChatTemplate
from phasewise.trainer.base.errors import PhasewiseError

NESTED = "{% set x = namespace(v=['lol']) %}{% for i in range(99) %}{% set x.v = [x.v, x.v] %}{% endfor %}"
TEXT = "{% set x = namespace(v='lol') %}{% for i in range(99) %}{% set x.v = x.v OPERATOR x.v %}{% endfor %}{{ x.v | length }}"
LONG = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
MACRO = "{% macro f(n) %}{% if n %}BODY{% endif %}{% endmacro %}{{ f(60) }}"
HOSTILE = {
    "ljust": "{{ 'x'.ljust(3000000000) }}",
    "rjust of a message": "{{ messages[0].content.rjust(3000000000) }}",
    "format": "{{ '{:>3000000000}'.format('x') }}",
    "format with a width that is given": "{{ '{0:{1}}'.format('x', 3000000000) }}",
    "percent": "{{ '%3000000000d' % 1 }}",
    "percent of a fraction": "{{ '%.2000000000f' % 1.5 }}",
    "format as a filter": "{{ '%3000000000s' | format('x') }}",
    "center": "{{ 'x'.center(3000000000) }}",
    "center as a filter, of a constant": "{{ 'x' | center(3000000000) }}",
    "zfill": "{{ 'x'.zfill(3000000000) }}",
    "expandtabs": "{{ 'a\tb'.expandtabs(2000000000) }}",
    "doubled by ~": TEXT.replace("OPERATOR", "~"),
    "doubled by +": TEXT.replace("OPERATOR", "+"),
    "doubled lists": TEXT.replace("'lol'", "['lol']").replace("OPERATOR", "+"),
    "repeated text": "{{ 'x' * 3000000000 }}",
    "repeated list": "{{ ([0] * 3000000000) | length }}",
    "tower of powers": "{{ 9 ** (9 ** 9) }}",
    "power of what a message has": "{{ (messages | length + 7) ** 99999999 }}",
    "squared again and again": "{% set x = namespace(v=3) %}{% for i in range(99) %}{% set x.v = x.v * x.v %}{% endfor %}{{ x.v % 7 }}",
    "shared lists as JSON": NESTED + "{{ x.v | tojson }}",
    "shared lists as text": NESTED + "{{ x.v | string | length }}",
    "shared lists compared": NESTED + "{% set y = x.v %}" + NESTED + "{{ y == x.v }}",
    "JSON with a wide indent": "{{ [[1]] | tojson(indent=1500000000) }}",
    "loops in loops": LONG.replace("BODY", ""),
    "loops in loops that write": LONG.replace("BODY", "lol"),
    "a block that grows before it is written": "{% set x %}" + LONG.replace("BODY", "lol" * 99) + "{% endset %}",
    "an answer that grows": "{% generation %}{% for a in range(99999) %}{{ 'lol' * 99999 }}{% endfor %}{% endgeneration %}",
    "macros that call themselves twice": MACRO.replace("BODY", "{{ f(n - 1) }}{{ f(n - 1) }}"),
    "macros that write twice as much each": MACRO.replace("BODY", "{% set x = f(n - 1) %}{{ x }}{{ x }}{% else %}lol"),
    "a loop that calls itself": "{% for m in [[messages, messages]] * 9 recursive %}{{ loop([m, m]) }}{% endfor %}",
    "a loop that calls itself by twos": NESTED + "{% for m in x.v recursive %}{% if m is not string %}{{ loop(m) }}{% endif %}{% endfor %}",
    "a range that is too long": "{% for a in range(3000000000) %}{% endfor %}",
    "ranges in a list": "{% set x = namespace(v=[]) %}{% for i in range(99999) %}{% set x.v = x.v + range(99999) | list %}{% endfor %}",
    "indent": "{{ ('a\n' * 999) | indent(3000000) | length }}",
    "replace": "{{ ('a' * 999999) | replace('a', 'b' * 999999) | length }}",
    "join": "{{ range(99999) | join('x' * 99999) | length }}",
    "slices": "{{ range(9) | slice(3000000000) | list | length }}",
    "words that are wrapped": "{{ ('a ' * 9999999) | wordwrap(1) | length }}",
    "sums of lists": "{{ ([range(999) | list] * 99999) | sum(start=[]) | length }}",
    "brackets in brackets": "{{ " + "(" * 100_000 + ")" * 100_000 + " }}",
    "lists in lists": "{{ " + "[" * 5_000 + "]" * 5_000 + " }}",
    "a template without end": "{{ messages[0].content }}" * 100_000,
}
SAID = (Message(role="user", content="u"), Message(role="assistant", content="a"))


def main() -> None:
    """Each, one after another; the peaks of this process and of those that it started are of all so far."""
    for name, text in HOSTILE.items():
        began, used = time.monotonic(), processor_seconds()
        try:
            said = f"taken: {ChatTemplate(text, name).render(SAID, 'a.jsonl, byte 12').text[:40]}"
        except PhasewiseError as error:
            said = f"{type(error).__name__}: {error}"
        renderer().close()  # the time of a process that was started counts when it has ended
        spent = {"seconds": time.monotonic() - began, "processor_seconds": processor_seconds() - used}
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(json.dumps({"name": name, "said": said, **spent, "own_mib": own_mib(), "child_mib": children}))


def own_mib() -> int:
    """The most memory of this process since its start. `getrusage` would count what the process that started it held, too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) >> 10


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main())
