"""The text of `phasewise --help`: commands in groups, each with one line, examples and exit codes."""

MAX_WIDTH = 100
GROUPS = {
    "Train": {
        "run": "Train a recipe phase by phase. Resumes unfinished work.",
        "try": "Compare changes of a phase with the phase itself, over seeds.",
        "figures": "Run figures of the published runs as small experiments.",
        "up": "Start the Prefect server, a worker, the deployments and the page.",
        "status": "Show the state of each phase and the reason for outdated results.",
        "goodput": "Show the use of the wall time of each phase.",
        "doctor": "Examine this machine: packages, devices, disk.",
        "gc": "List or delete files that no result needs, with their sizes.",
        "approve": "Approve or reject a phase that waits for a person.",
    },
    "Recipes": {
        "show": "Show a recipe as a table, or all values of one phase.",
        "lineage": "Show the phases, their parents and the declared changes.",
        "new": "Write your own recipe with two phases over a folder of text.",
        "mixture": "Search the mixture of a phase by a swarm of short trainings.",
        "schema": "Print the JSON schema of a recipe.",
        "preflight": "Compile for a TPU slice: memory, FLOPs, time, chip-hours.",
    },
    "Data": {
        "data": "Build token caches, or compare them with their sources.",
        "scan": "Search files and token caches for benchmark items.",
        "trace": "Show the training text of a step, or the steps that train on a text.",
        "why": "Rank the causes of a step's loss: rows, layers, changes.",
        "order": "Measure the mixing of a permutation.",
        "tokenizer": "Train, truncate and compare tokenizers.",
    },
    "Results": {
        "evaluate": "Measure a checkpoint with benchmarks or on a text.",
        "results": "Print published scores, and rank your own among them.",
        "sample": "Continue a text with a trained model.",
        "chat": "Hold a conversation with a trained model.",
        "export": "Write weights as a Hugging Face folder.",
        "report": "Write the page with all results as static files.",
        "card": "Write a signed model card with the digest of each result.",
        "verify": "Check a model card against the bytes of a home.",
    },
}
EXAMPLES = (
    ("phasewise run marin-8b", "train all phases at proxy scale, in minutes"),
    ("phasewise run marin-8b/kestrel --scale 130m", "train one phase at a larger size"),
    ("phasewise try mine.py/cooldown --arm hot:peak=2e-3 --seeds 3", "compare a change with its control"),
    ("phasewise show marin-32b/mantis", "show all values of a phase"),
    ("phasewise new mine.py --text FOLDER", "start with your own text"),
)
EXIT_CODES = (
    ("0", "success"),
    ("1", "a check failed, or the input was rejected"),
    ("2", "usage or configuration error"),
    ("3", "loss or gradients are not finite"),
    ("6", "another process took over the run"),
    ("7", "a file could not be read or written"),
    ("130", "stopped by Ctrl-C"),
)
