"""A row's chat, in one of three formats, as messages of one kind.

    {"messages": [{"role", "content"}, ...]}           Hugging Face, OpenAI
    {"prompt": [messages], "completion": [messages]}   TRL: the prompt's answers are not predicted
    {"conversations": [{"from", "value"}, ...]}        ShareGPT

A row may have "system", as ShareGPT's do, "tools" and TRL's "chat_template_kwargs", which its template reads. What is not understood is an error
that names the row: a chat that is half read would be trained on in silence.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Mapping, Optional

from .errors import DataError

Message = dict[str, Any]
ROLES = {  # of ShareGPT
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
TRAINED = {  # by which trainers (of OpenAI, axolotl, ms-swift) leave a message out, and the value that does not
    "weight": True,
    "train": True,
    "loss": True,
    "loss_mask": True,
    "masked": False,
}
FORMATS = ("messages", "prompt", "completion", "conversations")
# Of apply_chat_template itself.
RESERVED = {"messages", "conversation", "conversations", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message",
            "return_assistant_tokens_mask", "tokenize", "return_dict"}  # fmt: skip
EXPECTED = (
    'expected {"messages": [{"role", "content"}, ...]}, {"prompt": [messages], "completion": [messages]}, '
    'or {"conversations": [{"from", "value"}, ...]}'
)


@dataclasses.dataclass(frozen=True)
class Chat:
    origin: str  # in errors: FILE:LINE, or the row's number
    messages: list[Message]
    prompt_messages: int = 0  # the first so many are not predicted
    tools: Optional[list[Any]] = None
    template_values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def chat_of(row: Any, origin: str) -> Chat:
    if not isinstance(row, Mapping):
        raise DataError(f"{origin}: got {kind_of(row)}; {EXPECTED}")
    try:
        row = _without_nulls(row)
    except RecursionError as error:
        raise DataError(f"{origin}: its values are nested too deeply to be a chat") from error
    if row.get("functions") and row["functions"] != "[]":
        raise DataError(f'{origin} has the name functions, which chat templates do not read; give tools: [{{"type": "function", "function": ...}}, ...]')
    prompt, messages = _said_in(row, origin)
    values = row.get("chat_template_kwargs") or {}
    if not isinstance(values, Mapping):
        raise DataError(f"{origin}: chat_template_kwargs is {kind_of(values)}; expected an object of what the template reads")
    if taken := sorted(RESERVED & set(values)):
        raise DataError(f"{origin}: chat_template_kwargs has {taken[0]!r}, which is no value of a template; leave it out")
    return Chat(origin, prompt + messages, len(prompt), _tools_of(row.get("tools"), origin), values)


def _said_in(row: Mapping[str, Any], origin: str) -> tuple[list[Message], list[Message]]:
    """The prompt, or none, and what follows it. Several formats must say the same; beside messages a text is no format: it repeats
    the question (ultrachat_200k) or the answer too (everyday-conversations).
    """
    given = [name for name in FORMATS if name in row]
    lists = [name for name in given if row[name] and not isinstance(row[name], str)]
    if "messages" in lists or "conversations" in lists:
        given = lists
    said = []
    for names in (["messages"], ["prompt", "completion"], ["conversations"]):
        if all(name in given for name in names):
            parts = [_messages_of(row[name], f"{origin}: {name}") for name in names]
            _add_system(parts[0], row.get("system"), origin)
            said.append((parts[0] if len(parts) > 1 else [], parts[-1]))
    if not said and "chosen" in row and "rejected" in row:
        raise DataError(
            f"{origin} is a pair of 'chosen' and 'rejected', for preference training, which trireme train has not; DPOTrainer over ranks does it "
            f"(docs/huggingface.md); {EXPECTED}"
        )
    if not said:
        raise DataError(f"{origin} has {names_in(row)}; {EXPECTED}")
    half = ("prompt" in given) != ("completion" in given)
    if half or any(_predicted_and_all(*one) != _predicted_and_all(*said[0]) for one in said):
        raise DataError(f"{origin} has {', '.join(map(repr, given))}, which say what the chat is more than once, and not alike; leave out all but one; {EXPECTED}")
    return said[0]


def _predicted_and_all(prompt: list[Message], messages: list[Message]) -> tuple[list[Message], list[Message]]:
    return [message for message in messages if message["role"] == "assistant"], prompt + messages


def _add_system(messages: list[Message], system: Any, origin: str) -> None:
    if not system:
        return
    if not isinstance(system, (str, list, tuple)):
        raise DataError(f"{origin}: system is {kind_of(system)}; expected a text")
    if messages[0]["role"] != "system":
        messages.insert(0, _message_of({"role": "system", "content": system}, f"{origin}: system"))
    elif messages[0].get("content") != system:
        raise DataError(f"{origin} has 'system' beside a first message of role system that says otherwise; leave one of them out")


def _without_nulls(value: Any) -> Any:
    """As trl.trainer.utils.remove_none_values: a table's row has all names of all rows, at every depth, and null for what it lacks."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, (list, tuple)) else value


def _messages_of(value: Any, origin: str) -> list[Message]:
    if isinstance(value, str):
        raise DataError(f"{origin} is a text; expected a list of messages. `trireme tokenize` reads texts")
    if not isinstance(value, (list, tuple)) or not value:
        raise DataError(f"{origin} is {kind_of(value)}; expected a list of messages")
    return [_message_of(message, f"{origin}[{number}]") for number, message in enumerate(value)]


def _message_of(value: Any, origin: str) -> Message:
    if not isinstance(value, Mapping):
        raise DataError(f'{origin} is {kind_of(value)}; expected {{"role": ..., "content": ...}}')
    message = dict(value)
    if "role" not in message and "from" in message:
        said_by = message.pop("from")
        if said_by not in ROLES:
            raise DataError(f'{origin} is from {said_by!r}; expected one of {", ".join(ROLES)}. Others need "role" and "content"')
        said = {"content": message.pop("value")} if "value" in message else {}
        message = {"role": ROLES[said_by], **said, **message}
    if not isinstance(message.get("role"), str):
        raise DataError(f"{origin} has {names_in(message)}; expected a role, as user or assistant")
    if message.get("function_call"):
        raise DataError(
            f"{origin} has function_call, which chat templates do not read; give tool_calls: "
            '[{"type": "function", "function": {"name": ..., "arguments": ...}}], and role tool to the message that answers it'
        )
    if message["role"] == "assistant":
        _refuse_left_out(message, origin)
    if "content" in message:
        _check_content(message["content"], origin)
    elif not (message["role"] == "assistant" and message.get("tool_calls")):
        raise DataError(f"{origin}, of role {message['role']}, has no content; expected a text")
    return message


def _refuse_left_out(message: Message, origin: str) -> None:
    for name, trained in TRAINED.items():
        if message.get(name, trained) != trained:  # 1 and 1.0 equal True
            raise DataError(
                f"{origin} has {name} {message[name]!r}; every answer counts alike here. To predict the last alone, end the chat with it and "
                f'give answers="last" (--answers last), or a prompt and its completion, and leave out each {name}'
            )


def _check_content(content: Any, origin: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, (list, tuple)):
        raise DataError(f'{origin}: content is {kind_of(content)}; expected a text, or a list of {{"type": "text", "text": ...}}')
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise DataError(f'{origin}: content has a part {kind_of(part)}; expected {{"type": "text", "text": ...}}: images and sounds are not read')


def _tools_of(value: Any, origin: str) -> Optional[list[Any]]:
    try:
        value = json.loads(value) if isinstance(value, str) and value.strip() else value
    except (ValueError, RecursionError) as error:
        raise DataError(f"{origin}: tools is a text that is not JSON: {error}; expected a list of JSON schemas") from error
    if value and not (isinstance(value, (list, tuple)) and all(isinstance(tool, Mapping) for tool in value)):
        raise DataError(f"{origin}: tools is {kind_of(value)}; expected a list of JSON schemas")
    return list(value) if value else None  # some templates write about tools for an empty list too


def kind_of(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def names_in(row: Mapping[str, Any]) -> str:
    return "the names " + ", ".join(map(repr, row)) if row else "no names"
