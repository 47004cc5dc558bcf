"""Access distributions of embedding rows, their reuse, and what caches of them find."""

from perfmodel.locality.borrowed import borrowed
from perfmodel.locality.cache import Cache, CacheUse, TableAccess, first_batch_use, steady_use
from perfmodel.locality.generate import draw_like, draw_lookups, last_lookups
from perfmodel.locality.histogram import ReuseHistogram, read_histograms, reuse_histogram
from perfmodel.locality.hot_set import HotSet, hot_set, mixed_hot_frac, parted
from perfmodel.locality.policies import POLICIES, Policy
from perfmodel.locality.policies.lfu import Lfu
from perfmodel.locality.policies.lru import Lru
from perfmodel.locality.policies.set_associative import SetAssociativeLru
from perfmodel.locality.policies.static import StaticHotSet
from perfmodel.locality.policies.w_tinylfu import WTinyLfu
from perfmodel.locality.popularity import Popularity
from perfmodel.locality.reorder import Queries, reordered
from perfmodel.locality.replay import Replayed, replay
from perfmodel.locality.skew import uniform, zipf, zipf_alpha_of
from perfmodel.locality.streams import read_stream, stream_popularity
from perfmodel.locality.traced import TracedTable, traced_lookups
from perfmodel.locality.unseen import population

__all__ = [
    "POLICIES",
    "Cache",
    "CacheUse",
    "HotSet",
    "Lfu",
    "Lru",
    "Policy",
    "Popularity",
    "Queries",
    "Replayed",
    "ReuseHistogram",
    "SetAssociativeLru",
    "StaticHotSet",
    "TableAccess",
    "TracedTable",
    "WTinyLfu",
    "borrowed",
    "draw_like",
    "draw_lookups",
    "first_batch_use",
    "hot_set",
    "last_lookups",
    "mixed_hot_frac",
    "parted",
    "population",
    "read_histograms",
    "read_stream",
    "reordered",
    "replay",
    "reuse_histogram",
    "steady_use",
    "stream_popularity",
    "traced_lookups",
    "uniform",
    "zipf",
    "zipf_alpha_of",
]
