"""From sources to a prepared set: a recipe in TOML, its rows read, filtered, chosen and written, with a data card."""
