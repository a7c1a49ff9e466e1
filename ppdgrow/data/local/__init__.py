"""A user's own data at a path: text, parquet, image folders and saved data sets, read as three splits."""
