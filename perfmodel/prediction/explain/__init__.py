"""Why a node of a prediction takes what it takes: model, formula, hardware figures and sources."""
