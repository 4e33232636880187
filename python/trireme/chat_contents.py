"""Is all of a chat in what its template wrote? Templates pass over what they do not know, and the model would be trained on the rest.
Some write an answer's calls alone and drop its words (Llama-3.1), so an answer is looked for where it stands.

A template may trim texts and write them as JSON, so the first and the last word of each are looked for.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Iterator, Mapping

from .chat_formats import Chat, Message
from .errors import DataError

THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
REASONING = ("reasoning_content", "reasoning", "thinking")  # names of a message's other text


def check_contents(chat: Chat, messages: list[Message], predicted: Mapping[int, str], written_for: Callable[[int], str], text: str) -> None:
    """predicted: of the messages that are, a part of what the template wrote for each; written_for: all of it, which takes long. What
    the model thought is looked for in these alone: it is not shown what it thought before.
    """

    def is_written(word: str, number: int) -> bool:
        return _is_in(word, predicted.get(number, text)) or (number in predicted and _is_in(word, written_for(number)))

    for number, message in enumerate(messages):
        what = f"{chat.origin}: message {number} ({message['role']})"
        in_parts = not isinstance(message.get("content", ""), str)
        for kind, said in _texts_of(message, number in predicted):
            if not all(is_written(word, number) for word in _ends(said)):
                raise DataError(
                    f"{what}: its {kind}, {said[:40]!r}, is not in what the chat template writes for it"
                    + ("; it does not take content in parts; give it as one text" if in_parts else ": leave it or the row out, or name it as the template "
                       "does (role, content as a list of parts, tool_calls)")
                )
        if in_parts and str(message["content"]) in text and is_written(str(message["content"]), number):
            raise DataError(f"{what}: what it says is not in the chat that the template writes, which does not take content in parts; give it as one text")
    for tool in chat.tools or []:
        name = _name_of(tool)
        if name and not _is_in(name, text):
            raise DataError(f"{chat.origin}: the tool {name!r} is not in the chat that the template writes, which does not take tools; leave them out")


def stands_in(message: Message, text: str) -> bool:
    """False of one without words."""
    words = [word for _, said in _texts_of(message, False) for word in _ends(said)]
    return bool(words) and all(_is_in(word, text) for word in words)


def _ends(said: str) -> list[str]:
    return said.split(None, 1)[:1] + said.rsplit(None, 1)[-1:]


def _texts_of(message: Message, is_predicted: bool) -> Iterator[tuple[str, str]]:
    content = message.get("content", "")
    parts = [content] if isinstance(content, str) else [part["text"] for part in content]
    for part in parts:
        yield "content", THOUGHT.sub(" ", part)
        if is_predicted:
            for thought in THOUGHT.findall(part):
                yield "reasoning", thought
    for name in REASONING if is_predicted else ():
        if isinstance(message.get(name), str):
            yield name, message[name]
    for call in message.get("tool_calls") or []:
        yield "tool call", _name_of(call)


def _name_of(tool: Any) -> str:
    """Of a tool or of a call of it, with or without "function" around it."""
    if not isinstance(tool, Mapping):
        return ""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def _is_in(word: str, text: str) -> bool:
    return word in text or json.dumps(word)[1:-1] in text or json.dumps(word, ensure_ascii=False)[1:-1] in text
