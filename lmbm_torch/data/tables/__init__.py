"""Tables of named columns and the schema by which columns become features and labels."""
