"""Errors of predictions against what was measured, and a baseline that holds them."""

from perfmodel.validate.baseline import read_baseline, write_baseline
from perfmodel.validate.compare import Change, Comparison, Status, check_tolerance, compare
from perfmodel.validate.find import Job, demo_job, find_jobs
from perfmodel.validate.run import evaluate_jobs, evaluate_trace
from perfmodel.validate.tables import TableJob, find_tables
from perfmodel.validate.types import Evaluation, Kind, Row, TraceFacts

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
