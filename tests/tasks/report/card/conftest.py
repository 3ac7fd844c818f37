"""A small real home, a card of its second phase, and copies of both that a test may change."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from phasewise.tasks.report.card import STATEMENT_NAME, Against, CardOptions, Verification, verify_card, write_bundle, write_card
from phasewise.tasks.report.claims import Subject
from phasewise.trainer.base.identity import SEAL, write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from tests.compilation import compile_from_now_on
from tests.tasks.report.card.world import HELD_OUT_TOKENS, write_world

LAST_STEP = 52
SUBJECT = Subject("tiny", "proxy", "ocelot", HELD_OUT_TOKENS)
Edit = Callable[[Any], None]


class Carded(NamedTuple):
    home: Path
    card: Path

    def verify(self, **against: Any) -> Verification:
        return verify_card(self.card, Against(home=self.home, **against))

    def edit(self, path: str, edit: Edit) -> None:
        content = read_json(self.home / path)
        edit(content)
        (write_sealed if SEAL in content else write_json)(self.home / path, content)

    def forge(self, edit: Edit) -> None:
        """Change the claims, and write the whole card again from them: all of its documents agree."""
        claims = claims_of(self.card)
        edit(claims)
        shutil.rmtree(self.card)
        write_bundle(self.card, claims, None)


def claims_of(card: Path) -> dict[str, Any]:
    predicate = json.loads((card / STATEMENT_NAME).read_bytes())["predicate"]
    return {**{name: predicate[name] for name in ("recipe", "scale", "phase")}, **predicate["claims"]}


@contextmanager
def quickly() -> Iterator[None]:
    compile_from_now_on(quickly=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    with quickly():
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    with quickly():
        recipe, home = write_world(tmp_path_factory.mktemp("carded"))
    return recipe, home.root


@pytest.fixture(scope="session")
def written(trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Carded:
    home = trained[1]
    card = tmp_path_factory.mktemp("card") / "card"
    write_card(home, SUBJECT, card, CardOptions())
    return Carded(home, card)


@pytest.fixture
def carded(written: Carded, tmp_path: Path) -> Carded:
    """A copy that a test may change. Most of a home are checkpoints before the card's own: they are links, and no test changes one."""

    def copy_or_link(source: str, target: str) -> None:
        parts = Path(source).parts
        is_older = "checkpoints" in parts and parts[parts.index("checkpoints") + 1] != str(LAST_STEP)
        (os.link if is_older else shutil.copy2)(source, target)

    home = shutil.copytree(written.home, tmp_path / "home", copy_function=copy_or_link)
    return Carded(Path(home), Path(shutil.copytree(written.card, tmp_path / "card")))
