"""Results for people and other tools: tables, pages, Perfetto timelines."""
