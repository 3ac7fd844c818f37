"""How a record of a source holds a conversation, and which chat template makes text of it: as data."""

from typing import Literal

from pydantic import Field, model_validator

from phasewise.tasks.data.conversations.built_in import BUILT_IN
from phasewise.trainer.base.frozen import Frozen

Role = Literal["system", "user", "assistant"]


class AnswerColumn(Frozen):
    """The column that holds the answer.

    Attributes:
        key: its name.
        content: where the column is a list of answers, the field of one that is its text; None where the column is the text itself.
        best_by: the field of an answer whose highest number decides, and of equal ones the first; None takes the first answer.
    """

    key: str
    content: str | None = None
    best_by: str | None = None

    @model_validator(mode="after")
    def _chooses_among_several(self) -> "AnswerColumn":
        if self.best_by is not None and self.content is None:
            raise ValueError(f"best_by {self.best_by} chooses among the answers of a list: name the field of an answer's text in `content`")
        return self


class Conversation(Frozen):
    """A list of messages, or a question in a column of its own; with an answer, and a system text, from columns beside it where named.

    Attributes:
        messages: the column with the list of messages.
        role, content: the fields of a message, such as `from` and `value`.
        roles: what the source calls a role → which it is, such as {"human": "user", "gpt": "assistant"}. Any other role is no conversation.
        prompt: the column with the question, instead of `messages`.
        context: the column with what the question is about, such as Alpaca's `input`. It follows the question after a blank line.
        answer: the column whose text is the last message.
        system: the column with a system text. A record without one has no system message, and an empty one is none.
        leave_out: columns, and fields of a message, that are knowingly not used, such as `rejected` or `reasoning_content`. All other
            fields go to the template; another column with text in it is refused.
        template: the chat template: `marin` or `trinity`; a file, which begins with `/`, `./`, `../` or `~/` or is a URL; or Jinja itself.
        special_tokens: tokens that the template writes, and that do not look like `<|name|>`: those are found in it.
    """

    messages: str | None = None
    role: str = "role"
    content: str = "content"
    roles: dict[str, Role] = Field(default={"system": "system", "user": "user", "assistant": "assistant"})
    prompt: str | None = None
    context: str | None = None
    answer: AnswerColumn | None = None
    system: str | None = None
    leave_out: tuple[str, ...] = ()
    template: str = Field(min_length=1)
    special_tokens: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_questions_and_answers(self) -> "Conversation":
        if (self.messages is None) == (self.prompt is None):
            raise ValueError(
                "a conversation is either a list of messages (`messages`, the column's name) or a question in a column of its own "
                f"(`prompt`); found {self.messages!r} and {self.prompt!r}"
            )
        if self.prompt is not None and self.answer is None:
            raise ValueError(f"a conversation with a question in the column {self.prompt!r} needs the column of its answer: name `answer`")
        if self.context is not None and self.prompt is None:
            raise ValueError(f"a context ({self.context!r}) follows a question in a column of its own: name that in `prompt`")
        if self.messages is not None and self.answer is None and "assistant" not in self.roles.values():
            raise ValueError(f"one of a conversation's roles must be the assistant's, found {self.roles}: name it in `roles`")
        if not (names_file(self.template) or is_jinja(self.template) or self.template in BUILT_IN):
            raise ValueError(
                f"the chat template must be {' or '.join(BUILT_IN)}, a file (it begins with /, ./, ../ or ~/), or Jinja with braces; found "
                f"{self.template!r}"
            )
        if kept := sorted({self.role, self.content} & {*self.leave_out}):
            raise ValueError(f"leave_out names {', '.join(kept)}, which every message needs: take it out")
        if kept := sorted({*self.columns} & {*self.leave_out}):
            raise ValueError(f"leave_out names {', '.join(kept)}, which the conversation is made of: take it out")
        if "" in self.special_tokens:
            raise ValueError("special_tokens has an empty one: take it out")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        named = (self.system, self.messages, self.prompt, self.context, self.answer.key if self.answer else None)
        return tuple(dict.fromkeys(name for name in named if name is not None))


def names_file(template: str) -> bool:
    """Whether a template is named by its file."""
    return not is_jinja(template) and (template.startswith(("/", "./", "../", "~/")) or "://" in template)


def is_jinja(template: str) -> bool:
    """Whether it is the template itself."""
    return "{{" in template or "{%" in template
