"""Sharding plans: where each table goes so that a step takes least time, and why."""

from __future__ import annotations

from perfmodel.explore.planner.planned import ESTIMATORS, Estimator, Plan, plan_deployment

__all__ = ["ESTIMATORS", "Estimator", "Plan", "plan_deployment"]
