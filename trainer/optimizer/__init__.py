"""Optimizers, by the configuration's kind."""

from phasewise.trainer.optimizer.build import BuiltOptimizer, OptimizerState, build_optimizer, moments, weight_decays
from phasewise.trainer.optimizer.groups import WeightRule, weight_rules

__all__ = ["BuiltOptimizer", "OptimizerState", "WeightRule", "build_optimizer", "moments", "weight_decays", "weight_rules"]
