"""Templates that take all time or memory. Run as a module, it prints what comes of each, as JSON lines."""

import json
import os
import resource
import sys
import time
from pathlib import Path

from phasewise.tasks.data.conversation import Message
from phasewise.tasks.data.template import RENDERER, ChatTemplate
from phasewise.trainer.base.errors import PhasewiseError

NESTED = "{% set x = namespace(v=['lol']) %}{% for i in range(99) %}{% set x.v = [x.v, x.v] %}{% endfor %}"
TEXT = "{% set x = namespace(v='lol') %}{% for i in range(99) %}{% set x.v = x.v OPERATOR x.v %}{% endfor %}{{ x.v | length }}"
LONG = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
MACRO = "{% macro f(n) %}{% if n %}BODY{% endif %}{% endmacro %}{{ f(60) }}"
HOSTILE = {
    "ljust": "{{ 'x'.ljust(3000000000) }}", "rjust of a message": "{{ messages[0].content.rjust(3000000000) }}",
    "format with a width that is given": "{{ '{0:{1}}'.format('x', 3000000000) }}", "percent of a fraction": "{{ '%.2000000000f' % 1.5 }}",
    "doubled by ~": TEXT.replace("OPERATOR", "~"), "repeated list": "{{ ([0] * 3000000000) | length }}",
    "tower of powers": "{{ 9 ** (9 ** 9) }}", "shared lists as JSON": NESTED + "{{ x.v | tojson }}",
    "loops in loops that write": LONG.replace("BODY", "lol"),
    "an answer that grows": "{% generation %}{% for a in range(99999) %}{{ 'lol' * 99999 }}{% endfor %}{% endgeneration %}",
    "macros that write twice as much each": MACRO.replace("BODY", "{% set x = f(n - 1) %}{{ x }}{{ x }}{% else %}lol"),
    "a loop that calls itself": "{% for m in [[messages, messages]] * 9 recursive %}{{ loop([m, m]) }}{% endfor %}",
    "join": "{{ range(99999) | join('x' * 99999) | length }}",
    "sums of lists": "{{ ([range(999) | list] * 99999) | sum(start=[]) | length }}",
    "brackets in brackets": "{{ " + "(" * 100_000 + ")" * 100_000 + " }}", "a template without end": "{{ messages[0].content }}" * 100_000,
}  # fmt: skip
SAID = (Message(role="user", content="u"), Message(role="assistant", content="a"))


def main() -> None:
    """Each, one after another; the peaks of this process and of those that it started are of all so far."""
    for name, text in HOSTILE.items():
        began, used = time.monotonic(), processor_seconds()
        try:
            said = f"taken: {ChatTemplate(text, name).render(SAID, 'a.jsonl, byte 12').text[:40]}"
        except PhasewiseError as error:
            said = f"{type(error).__name__}: {error}"
        RENDERER.close()  # the time of a process that was started counts when it has ended
        spent = {"seconds": time.monotonic() - began, "processor_seconds": processor_seconds() - used}
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(json.dumps({"name": name, "said": said, **spent, "own_mib": own_mib(), "child_mib": children}))


def own_mib() -> int:
    """The most memory of this process since its start. `getrusage` would count what the process that started it held, too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) >> 10


def processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main())
