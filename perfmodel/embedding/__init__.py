"""Embedding tables: which rows are read, what caches of them find, and where tables are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.embedding.cache import (
        Cache,
        CacheUse,
        Replayed,
        TableAccess,
        first_batch_use,
        replay,
        steady_use,
    )
    from perfmodel.embedding.histogram import (
        ReuseHistogram,
        popularity_of_similar,
        population,
        read_histograms,
        reuse_histogram,
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
    from perfmodel.embedding.memories import CACHE_PLACES, MEMORIES, Memory
    from perfmodel.embedding.placement import (
        MicroBatch,
        Pipeline,
        Placement,
        RowCache,
        RowDtype,
        Sharding,
        TablePlacement,
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

__all__ = [
    "CACHE_PLACES",
    "MEMORIES",
    "POLICIES",
    "Cache",
    "CacheUse",
    "HotSet",
    "Lfu",
    "Lru",
    "Memory",
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


__getattr__ = exports(
    __name__,
    {
        "CACHE_PLACES": "perfmodel.embedding.memories",
        "MEMORIES": "perfmodel.embedding.memories",
        "Memory": "perfmodel.embedding.memories",
        "Cache": "perfmodel.embedding.cache",
        "CacheUse": "perfmodel.embedding.cache",
        "HotSet": "perfmodel.embedding.hot_rows",
        "Lfu": "perfmodel.embedding.policies.replacement",
        "Lru": "perfmodel.embedding.policies.replacement",
        "MicroBatch": "perfmodel.embedding.placement",
        "POLICIES": "perfmodel.embedding.policies",
        "Pipeline": "perfmodel.embedding.placement",
        "Placement": "perfmodel.embedding.placement",
        "Policy": "perfmodel.embedding.policies",
        "Popularity": "perfmodel.embedding.popularity",
        "Queries": "perfmodel.embedding.reorder",
        "Replayed": "perfmodel.embedding.cache",
        "ReuseHistogram": "perfmodel.embedding.histogram",
        "RowCache": "perfmodel.embedding.placement",
        "RowDtype": "perfmodel.embedding.placement",
        "SetAssociativeLru": "perfmodel.embedding.policies.replacement",
        "Sharding": "perfmodel.embedding.placement",
        "StaticHotSet": "perfmodel.embedding.policies.replacement",
        "TableAccess": "perfmodel.embedding.cache",
        "TablePlacement": "perfmodel.embedding.placement",
        "TracedTable": "perfmodel.embedding.index_streams",
        "WTinyLfu": "perfmodel.embedding.policies.replacement",
        "draw_like": "perfmodel.embedding.index_streams",
        "draw_lookups": "perfmodel.embedding.index_streams",
        "first_batch_use": "perfmodel.embedding.cache",
        "hot_set": "perfmodel.embedding.hot_rows",
        "last_lookups": "perfmodel.embedding.index_streams",
        "mixed_hot_frac": "perfmodel.embedding.hot_rows",
        "popularity_of_similar": "perfmodel.embedding.histogram",
        "population": "perfmodel.embedding.histogram",
        "read_histograms": "perfmodel.embedding.histogram",
        "read_stream": "perfmodel.embedding.index_streams",
        "reordered": "perfmodel.embedding.reorder",
        "replay": "perfmodel.embedding.cache",
        "reuse_histogram": "perfmodel.embedding.histogram",
        "split_hot": "perfmodel.embedding.hot_rows",
        "steady_use": "perfmodel.embedding.cache",
        "stream_popularity": "perfmodel.embedding.index_streams",
        "traced_lookups": "perfmodel.embedding.index_streams",
        "uniform": "perfmodel.embedding.popularity",
        "zipf": "perfmodel.embedding.popularity",
        "zipf_alpha_of": "perfmodel.embedding.popularity",
    },
)
