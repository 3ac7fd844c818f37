"""The parts that some benchmarks of lm-eval have."""

MMLU = (
    "abstract_algebra", "anatomy", "astronomy", "business_ethics", "clinical_knowledge", "college_biology", "college_chemistry",
    "college_computer_science", "college_mathematics", "college_medicine", "college_physics", "computer_security", "conceptual_physics",
    "econometrics", "electrical_engineering", "elementary_mathematics", "formal_logic", "global_facts", "high_school_biology",
    "high_school_chemistry", "high_school_computer_science", "high_school_european_history", "high_school_geography",
    "high_school_government_and_politics", "high_school_macroeconomics", "high_school_mathematics", "high_school_microeconomics",
    "high_school_physics", "high_school_psychology", "high_school_statistics", "high_school_us_history", "high_school_world_history",
    "human_aging", "human_sexuality", "international_law", "jurisprudence", "logical_fallacies", "machine_learning", "management",
    "marketing", "medical_genetics", "miscellaneous", "moral_disputes", "moral_scenarios", "nutrition", "philosophy", "prehistory",
    "professional_accounting", "professional_law", "professional_medicine", "professional_psychology", "public_relations",
    "security_studies", "sociology", "us_foreign_policy", "virology", "world_religions",
)  # fmt: skip
"""Subjects."""
MMLU_PRO = (
    "biology", "business", "chemistry", "computer_science", "economics", "engineering", "health", "history", "law", "math", "other",
    "philosophy", "physics", "psychology",
)  # fmt: skip
"""Categories, with `_` for a space."""
BBH_COT = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa", "dyck_languages", "formal_fallacies",
    "geometric_shapes", "hyperbaton", "logical_deduction_five_objects", "logical_deduction_seven_objects",
    "logical_deduction_three_objects", "movie_recommendation", "multistep_arithmetic_two", "navigate", "object_counting",
    "penguins_in_a_table", "reasoning_about_colored_objects", "ruin_names", "salient_translation_error_detection", "snarks",
    "sports_understanding", "temporal_sequences", "tracking_shuffled_objects_five_objects", "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects", "web_of_lies", "word_sorting",
)  # fmt: skip
"""Tasks that are answered in words."""
BBH_WITHOUT_CHOICES = ("dyck_languages", "multistep_arithmetic_two", "word_sorting")
BBH_CHOICES = tuple(name for name in BBH_COT if name not in BBH_WITHOUT_CHOICES)
"""Those that have choices."""
AGIEVAL = (
    "aqua-rat", "logiqa-en", "lsat-ar", "lsat-lr", "lsat-rc", "sat-en", "sat-en-without-passage", "sat-math",
)  # fmt: skip
"""Exams in English that are questions of choice."""
MUSR = ("murder_mysteries", "object_placements", "team_allocation")
MATH = (
    ("algebra", "Algebra"),
    ("counting_and_prob", "Counting & Probability"),
    ("geometry", "Geometry"),
    ("intermediate_algebra", "Intermediate Algebra"),
    ("num_theory", "Number Theory"),
    ("prealgebra", "Prealgebra"),
    ("precalc", "Precalculus"),
)
"""Subjects of MATH: lm-eval's word, and that of the items."""
