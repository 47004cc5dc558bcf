"""Errors of predictions against what was measured, and a baseline that holds them."""

from __future__ import annotations

from perfmodel.evaluation.baseline import (
    Change,
    Comparison,
    Status,
    check_tolerance,
    compare,
    read_baseline,
    write_baseline,
)
from perfmodel.evaluation.jobs import Job, demo_job, evaluate_jobs, evaluate_trace, find_jobs
from perfmodel.evaluation.kernels import TableJob, find_tables
from perfmodel.evaluation.results import Evaluation, Kind, Row, TraceFacts

__all__ = [
    "Change",
    "Comparison",
    "Evaluation",
    "Job",
    "Kind",
    "Row",
    "Status",
    "TableJob",
    "TraceFacts",
    "check_tolerance",
    "compare",
    "demo_job",
    "evaluate_jobs",
    "evaluate_trace",
    "find_jobs",
    "find_tables",
    "read_baseline",
    "write_baseline",
]
