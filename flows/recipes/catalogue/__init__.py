"""Every component by name: the real data set, and the stand-in that takes its place at proxy scale.

Data-set ids and revisions are the record's (Marin experiment code); `docs/explanation/marin.md` says of each what was confirmed elsewhere.
Trinity's data are not public: they have stand-ins only.
"""

from phasewise.flows.recipes.catalogue.code import CODE
from phasewise.flows.recipes.catalogue.component import ComponentData
from phasewise.flows.recipes.catalogue.instruction import INSTRUCTION
from phasewise.flows.recipes.catalogue.mathematics import MATHEMATICS
from phasewise.flows.recipes.catalogue.papers import PAPERS
from phasewise.flows.recipes.catalogue.questions import QUESTIONS
from phasewise.flows.recipes.catalogue.reference import REFERENCE
from phasewise.flows.recipes.catalogue.trinity import TRINITY
from phasewise.flows.recipes.catalogue.web import WEB

__all__ = ["CATALOGUE", "ComponentData"]

CATALOGUE: dict[str, ComponentData] = {**WEB, **CODE, **MATHEMATICS, **PAPERS, **REFERENCE, **QUESTIONS, **INSTRUCTION, **TRINITY}
