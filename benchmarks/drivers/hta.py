"""HTA (HolisticTraceAnalysis) and its successor release traceinsight: one module, one driver."""

from __future__ import annotations

from benchmarks.drivers.stages import Stages, run


def work(trace: str, stages: Stages, steps: str) -> None:
    """Load, four breakdowns, and the critical path of one profiler step or of all it keeps."""
    with stages.stage("import"):
        from hta.trace_analysis import TraceAnalysis
    if stages.errors:
        return
    with stages.stage("load"):
        analysis = TraceAnalysis(trace_files={0: trace})
    if stages.errors:
        return
    with stages.stage("temporal_breakdown"):
        analysis.get_temporal_breakdown(visualize=False)
    with stages.stage("idle_time_breakdown"):
        analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    with stages.stage("comm_comp_overlap"):
        analysis.get_comm_comp_overlap(visualize=False)
    with stages.stage("gpu_kernel_breakdown"):
        analysis.get_gpu_kernel_breakdown(visualize=False)

    # What HTA still has: it drops the last profiler step where there are several. It advises
    # against the first, so take the second where there is one.
    count = len(analysis.get_profiler_steps())
    instances = range(max(1, count)) if steps == "all" else [min(1, max(0, count - 1))]
    nodes = []
    with stages.stage("critical_path"):
        for instance in instances:
            found = analysis.critical_path_analysis(
                rank=0, annotation="ProfilerStep" if count else "", instance_id=instance
            )
            if found is None or not found[1]:
                raise RuntimeError(f"no critical path for ProfilerStep instance {instance}")
            nodes.append(len(found[0].critical_path_nodes))
    stages.result = {
        "events": len(analysis.t.get_trace(0)),
        "critical_path_instances": list(instances),
        "critical_path_nodes": nodes,
    }


if __name__ == "__main__":
    run(work, ("HolisticTraceAnalysis", "traceinsight", "pandas", "numpy", "networkx"))
