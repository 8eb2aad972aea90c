"""The user's own tables: a schema, which is kept, makes features and labels of their columns."""
