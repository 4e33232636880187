"""A chat as its model's template writes it, and which characters the assistant has to produce.

    <s> [INST] Hi [/INST] Hello!</s> [INST] Bye [/INST] See you.</s>
                         ------------                  -------------   the answers

A template with {% generation %} marks tells them itself. Of another one, an answer is what the chat up to it has more
than the chat before it with the generation prompt, by which a model is asked to answer: so what the generation prompt
writes (a header; with Qwen3's enable_thinking false an empty <think> block) is read and not predicted, and what the
model has to write after it (without that, Qwen3's <think> block, empty or not) is. White space behind an answer is no
part of it: the model has stopped before. Both renderings must begin the whole chat, or the answer is not to be found.
"""

from __future__ import annotations

import bisect
import functools
import json
import re
from typing import Any, Mapping

from .chat_contents import check_contents, stands_in
from .chat_formats import Chat, Message
from .errors import ConfigError, DataError

Span = tuple[int, int]  # of characters: the first, and behind the last
MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")  # as transformers looks for them
ADVICE_TO_GIVE_MARKS = (
    "give a template with {% generation %} marks around what the assistant writes, as "
    "trl.chat_template_utils.get_training_chat_template(tokenizer) does for many models (tokenizer.chat_template = ..., or "
    "--chat_template_path FILE)"
)
ADVICE_TO_BEGIN_OTHERWISE = "; a chat that begins with the assistant has nothing to be asked by: begin it with a user's message, or leave it out"


class ChatTemplate:
    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise ConfigError(
                f"chats: {tokenizer.name_or_path or 'the tokenizer'} has no chat template; take the tokenizer of the model's Instruct "
                "variant, or give a template: tokenizer.chat_template = ..., --chat_template_path FILE, or chat_template.jinja in its folder"
            )

    def answers_of(self, chat: Chat, last_alone: bool) -> tuple[str, list[Span]]:
        """The chat's text, and its answers in it. last_alone: the last, with which the text then ends."""
        asked = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant" and i >= chat.prompt_messages]
        if not asked:
            raise DataError(f"{chat.origin} has no message of the assistant to predict; leave it out, or `trireme tokenize` its text")
        messages = self._as_the_template_takes_them(chat)
        if last_alone:
            asked, messages = asked[-1:], messages[: asked[-1] + 1]
        if MARKS.search(self._source(chat)):
            text, answers = self._marked(chat, messages, asked[0])
            spans = answers if _is_one_for_each(answers, messages, asked, text) else [(0, 0)] * len(asked)
        else:
            text, answers = self._between(chat, messages, asked, last_alone)
            spans = answers
        parts = {i: text[begin:end] for i, (begin, end) in zip(asked, spans)}
        check_contents(chat, messages, parts, functools.cache(lambda i: self._written_for(chat, messages, i, text)), text)
        return text, answers

    def _as_the_template_takes_them(self, chat: Chat) -> list[Message]:
        """Some templates (DeepSeek's) want arguments as a text, and fail with others."""
        parsed = _with_parsed_arguments(chat.messages)
        if parsed != chat.messages:
            try:
                self._render(chat, parsed)
            except DataError:
                return chat.messages
        return parsed

    def _marked(self, chat: Chat, messages: list[Message], first: int) -> tuple[str, list[Span]]:
        text, marked = self._render(chat, messages)
        before = messages[:first]
        if any(message["role"] == "assistant" for message in before):
            text_before, marked_before = self._render(chat, before)
            marked, passed = marked[len(marked_before) :], marked[: len(marked_before)]
            if [text[slice(*span)] for span in passed] != [text_before[slice(*span)] for span in marked_before]:
                raise DataError(
                    f"{chat.origin}: the chat template's {{% generation %}} marks of the chat before message {first} are not the first ones of "
                    "the whole chat, so which are of the answers to predict is not to be found; give a template that marks an answer alike "
                    "wherever it stands"
                )
        answers = [(begin, end) for begin, end in marked if begin < end]
        if not answers:
            raise DataError(f"{chat.origin}: the chat template's {{% generation %}} marks hold nothing of the answers to predict")
        return text, answers

    def _between(self, chat: Chat, messages: list[Message], asked: list[int], last_alone: bool) -> tuple[str, list[Span]]:
        text = self._render(chat, messages)[0]
        answers = []
        for i in asked:
            before = self._render(chat, messages[:i], prompt=True)[0]
            after = (text if i + 1 == len(messages) else self._render(chat, messages[: i + 1])[0]).rstrip()
            for part, words in ((before, "up to it, with the generation prompt,"), (after, "to its end")):
                if not text.startswith(part):
                    raise DataError(_where_they_differ(f"{chat.origin}: message {i} (assistant)", words, part, text, last_alone))
            if len(after) <= len(before):
                raise DataError(f"{chat.origin}: message {i} (assistant): the chat template writes nothing for it behind the generation prompt")
            answers.append((len(before), len(after)))
        return text, answers

    def _written_for(self, chat: Chat, messages: list[Message], i: int, text: str) -> str:
        """What stands for message i in the whole text; more where the template writes its beginning otherwise.

        It holds what the generation prompt writes, with which an answer may begin. It takes two renderings.
        """

        def first(count: int) -> str:
            try:
                return self._render(chat, messages[:count])[0].rstrip()
            except DataError:  # some templates take no chat that ends so, or none without a message
                return ""

        before, after = first(i), first(i + 1)
        return text[_same_characters(before, text) : len(after) if after and text.startswith(after) else None]

    def _source(self, chat: Chat) -> str:
        try:
            return self._tokenizer.get_chat_template(tools=chat.tools)
        except ValueError as error:  # several templates, none of them for this
            raise ConfigError(f"{chat.origin}: {error}") from error

    def _render(self, chat: Chat, messages: list[Message], prompt: bool = False) -> tuple[str, list[Span]]:
        """As apply_chat_template(tokenize=False), which does not tell the marks' places and takes no empty chat.

        Its return_assistant_tokens_mask does not help: a mark that ends in a character without a token of its own, as a
        space whose offsets are trimmed, makes targets of all that follows.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        values = {**self._tokenizer.special_tokens_map, **chat.template_values}
        source = self._source(chat)
        try:
            (text,), marks = render_jinja_template(
                [messages],
                tools=chat.tools,
                chat_template=source,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=bool(MARKS.search(source)),
                **values,
            )
            text.encode()  # half a surrogate pair is no character
        except Exception as error:  # a template may raise anything
            raise DataError(
                f"{chat.origin}: the chat template cannot write its first {len(messages)} of {len(chat.messages)} messages"
                f"{', with the generation prompt' * prompt}: {type(error).__name__}: {error}{ADVICE_TO_BEGIN_OTHERWISE * (not messages)}"
            ) from error
        return text, marks[0] if marks else []


def _with_parsed_arguments(messages: list[Message]) -> list[Message]:
    """OpenAI's calls have their arguments as a text of JSON, and most templates write JSON of what they are given."""

    def parsed(call: Any) -> Any:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
            return call
        try:
            function = {**function, "arguments": json.loads(function["arguments"])}
        except ValueError:
            return call
        return {**call, "function": function} if "function" in call else function

    return [{**message, "tool_calls": [parsed(call) for call in message["tool_calls"]]} if message.get("tool_calls") else message for message in messages]


def _is_one_for_each(answers: list[Span], messages: list[Message], asked: list[int], text: str) -> bool:
    """An answer may have several marks, and another none: then the messages between two answers are not between their marks."""
    if len(answers) != len(asked):
        return False
    between = [text[end:begin] for (_, end), (begin, _) in zip(answers, answers[1:])]
    said = [messages[i + 1 : j] for i, j in zip(asked, asked[1:])]
    return all(any(stands_in(message, part) for message in some) for some, part in zip(said, between))


def _same_characters(one: str, other: str) -> int:
    """How many both begin with."""
    if other.startswith(one):
        return len(one)
    return bisect.bisect_left(range(min(len(one), len(other))), True, key=lambda at: one[: at + 1] != other[: at + 1])


def _where_they_differ(origin: str, words: str, part: str, text: str, last_alone: bool) -> str:
    same = _same_characters(part, text)
    begin = max(0, same - 30)
    instead = "" if last_alone else ', or predict the last answer alone by answers="last" (--answers last), with a row for each answer'
    return (
        f"{origin}: the chat template writes the chat {words} otherwise than within the whole chat, so its answer is not to be found "
        f"there: from character {begin} it is {part[begin : same + 40]!r}, and {text[begin : same + 40]!r} in the whole; {ADVICE_TO_GIVE_MARKS}{instead}"
    )
