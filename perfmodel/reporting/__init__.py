"""Results for other tools: pages, Perfetto timelines, GraphML, Chakra."""
