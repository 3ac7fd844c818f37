"""How well a training run went, measured from its metrics: `health_evidence` makes the table."""

from phasewise.validations.evidence.health.evidence import health_evidence as health_evidence
