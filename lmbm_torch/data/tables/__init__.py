"""The user's own tables: read by name, their columns made features and labels by a schema that is kept."""
