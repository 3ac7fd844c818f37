"""The names that fields of benchmark rows go by. Names are compared in lower case, without anything but letters and digits."""

# The first shape of which a row has all fields gives the question, its fields joined.
QUESTIONS = (
    ("body", "question"),
    ("premise", "hypothesis"),
    ("premise", "question"),
    ("premise",),
    ("sentence1", "sentence2"),
    ("inputsentence1", "inputsentence2", "inputsentence3", "inputsentence4"),
    ("question",),
    ("questionstem",),
    ("questiontext",),
    ("questioncontent",),
    ("problem",),
    ("problemstatement",),
    ("goal",),
    ("query",),
    ("instruction", "input"),
    ("instruction",),
    ("instructprompt",),
    ("completeprompt",),
    ("prompt",),
    ("prompts",),
    ("turns",),
    ("input",),
    ("inputs",),
    ("ctx",),
    ("ctxa", "ctxb"),
    ("startphrase",),
    ("sentence",),
    ("stem",),
    ("claim",),
    ("statement",),
    ("opening",),
    ("description",),
    ("intent",),
    ("context",),
    ("text",),
    ("messages",),
    ("conversations",),
)

# A single underscore in such a field is a blank that one of two options fills.
BLANKED = "sentence"

# Beside a question: published text that it is about ...
SOURCES = ("article", "document", "paragraph", "support", "abstract", "story", "contexts")
# ... and text that may be published or written for the test.
BACKGROUNDS = ("passage", "context", "background", "scenario")

CHOICES = (
    "choices",
    "options",
    "endings",
    "answerchoices",
    "answeroptions",
    "candidates",
    "candidateanswers",
    "possibleanswers",
    "alternatives",
    "mc1targets",
)
# Columns of one choice each: `option1`, `opa`, `ending0`, `answerA`, `sentence_quiz1`, or just `A`.
CHOICE_COLUMN = r"(choice|option|opt|op|sol|solution|ending|answer|ans|candidate|sentencequiz|randomsentencequiz|)([a-j]|[0-9]{1,2})"
WRONG_CHOICE = r"(?:incorrect|wrong)(?:answers?|choices?|options?)[0-9]*|distractors?[0-9]*"
RIGHT_CHOICE = ("correctanswer", "bestanswer", "rightanswer", "answer")

GOLD = (
    "answerindex",
    "answeridx",
    "correctindex",
    "correctanswerindex",
    "goldindex",
    "gold",
    "goldlabel",
    "label",
    "answerkey",
    "answerletter",
    "correctoption",
    "correctchoice",
    "correct",
    "cop",
    "answerrightending",
    "target",
    "targets",
    "answer",
    "correctanswer",
)
ANSWERS = (
    "answer",
    "finalanswer",
    "answernumber",
    "answers",
    "correctanswer",
    "bestanswer",
    "expectedanswer",
    "groundtruth",
    "goldanswer",
    "referenceanswer",
    "reference",
    "finaldecision",
    "target",
    "targets",
    "gold",
    "label",
    "output",
    "outputs",
    "response",
    "completion",
    "continuation",
)
SOLUTIONS = (
    "canonicalsolution",
    "referencecode",
    "code",
    "solution",
    "solutions",
    "rationale",
    "reasoning",
    "cotcontent",
    "cot",
    "chainofthought",
    "explanation",
    "exp",
    "longanswer",
)
IDS = ("id", "taskid", "questionid", "problemid", "uniqueid", "exampleid", "qid", "uid", "guid", "key", "idx", "index", "ind")

# The row itself may be inside such a field.
NESTED = ("raw", "row", "doc")
# What to take of a value that is itself a row.
INNER_TEXTS = ("text", "texts", "value", "content", "spans", "number", "stem", "choices", "contexts")
