"""Embedding tables: which rows are read, what caches of them find, and where tables are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.embedding.cache import POLICIES as POLICIES
    from perfmodel.embedding.cache import CacheUse as CacheUse
    from perfmodel.embedding.cache import HotSet as HotSet
    from perfmodel.embedding.cache import Policy as Policy
    from perfmodel.embedding.cache import TableAccess as TableAccess
    from perfmodel.embedding.cache import hot_set as hot_set
    from perfmodel.embedding.cache import mixed_hot_frac as mixed_hot_frac
    from perfmodel.embedding.cache import steady_use as steady_use
    from perfmodel.embedding.index_streams import ReuseHistogram as ReuseHistogram
    from perfmodel.embedding.index_streams import population as population
    from perfmodel.embedding.index_streams import read_stream as read_stream
    from perfmodel.embedding.index_streams import reuse_histogram as reuse_histogram
    from perfmodel.embedding.index_streams import traced_lookups as traced_lookups
    from perfmodel.embedding.placement import MicroBatch as MicroBatch
    from perfmodel.embedding.placement import Pipeline as Pipeline
    from perfmodel.embedding.placement import Placement as Placement
    from perfmodel.embedding.placement import RowCache as RowCache
    from perfmodel.embedding.placement import RowDtype as RowDtype
    from perfmodel.embedding.placement import Sharding as Sharding
    from perfmodel.embedding.placement import TablePlacement as TablePlacement
    from perfmodel.embedding.popularity import Popularity as Popularity
    from perfmodel.embedding.popularity import uniform as uniform
    from perfmodel.embedding.popularity import zipf as zipf
    from perfmodel.embedding.popularity import zipf_alpha_of as zipf_alpha_of

__getattr__, __dir__, __all__ = exports(__name__)
