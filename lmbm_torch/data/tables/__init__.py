"""Tables of named columns, and the schema that says how columns become features and labels."""
