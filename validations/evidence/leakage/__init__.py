"""The search of training text for benchmark items and held-out documents."""

TABLE_NAME = "index.json"  # the sealed list of an index: the files of its folder
