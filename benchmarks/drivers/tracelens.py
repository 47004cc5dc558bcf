"""AMD's TraceLens (AMD-AGI/TraceLens): the trace tree, the GPU timeline, the unified table."""

from __future__ import annotations

from benchmarks.drivers.stages import Stages, run


def work(trace: str, stages: Stages, steps: str) -> None:
    """Load into a tree, GPU timeline, unified performance table with its summary."""
    del steps  # TraceLens has no critical path
    with stages.stage("import"):
        from TraceLens import TreePerfAnalyzer
    if stages.errors:
        return
    with stages.stage("load"):
        analyzer = TreePerfAnalyzer.from_file(trace)
    if stages.errors:
        return
    with stages.stage("gpu_timeline"):
        analyzer.get_df_gpu_timeline()
    with stages.stage("unified_perf"):
        table = analyzer.build_df_unified_perf_table()
        stages.result = {"events": len(analyzer.tree.events), "rows": len(table)}
        if not table.empty:
            analyzer.summarize_df_unified_perf_table(table, include_pct=True)


if __name__ == "__main__":
    run(work, ("TraceLens", "pandas", "numpy"))
