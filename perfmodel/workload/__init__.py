"""Model configurations (TOML) to op graphs."""
