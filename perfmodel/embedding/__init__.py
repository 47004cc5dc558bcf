"""Embedding tables: which rows are read, what caches of them find, and where tables lie."""

from __future__ import annotations

from perfmodel.embedding.cache import (
    Cache,
    CacheUse,
    Replayed,
    TableAccess,
    first_batch_use,
    replay,
    steady_use,
)
from perfmodel.embedding.hot_rows import HotSet, hot_set, mixed_hot_frac, split_hot
from perfmodel.embedding.index_streams import (
    TracedTable,
    draw_like,
    draw_lookups,
    last_lookups,
    read_stream,
    stream_popularity,
    traced_lookups,
)
from perfmodel.embedding.placement import (
    CacheAt,
    MicroBatch,
    Pipeline,
    Placement,
    RowCache,
    RowDtype,
    Sharding,
    TablePlacement,
    Tier,
)
from perfmodel.embedding.policies import POLICIES, Policy
from perfmodel.embedding.policies.replacement import (
    Lfu,
    Lru,
    SetAssociativeLru,
    StaticHotSet,
    WTinyLfu,
)
from perfmodel.embedding.popularity import Popularity, uniform, zipf, zipf_alpha_of
from perfmodel.embedding.reorder import Queries, reordered
from perfmodel.embedding.reuse_histogram import (
    ReuseHistogram,
    popularity_of_similar,
    population,
    read_histograms,
    reuse_histogram,
)

__all__ = [
    "POLICIES",
    "Cache",
    "CacheAt",
    "CacheUse",
    "HotSet",
    "Lfu",
    "Lru",
    "MicroBatch",
    "Pipeline",
    "Placement",
    "Policy",
    "Popularity",
    "Queries",
    "Replayed",
    "ReuseHistogram",
    "RowCache",
    "RowDtype",
    "SetAssociativeLru",
    "Sharding",
    "StaticHotSet",
    "TableAccess",
    "TablePlacement",
    "Tier",
    "TracedTable",
    "WTinyLfu",
    "draw_like",
    "draw_lookups",
    "first_batch_use",
    "hot_set",
    "last_lookups",
    "mixed_hot_frac",
    "popularity_of_similar",
    "population",
    "read_histograms",
    "read_stream",
    "reordered",
    "replay",
    "reuse_histogram",
    "split_hot",
    "steady_use",
    "stream_popularity",
    "traced_lookups",
    "uniform",
    "zipf",
    "zipf_alpha_of",
]
