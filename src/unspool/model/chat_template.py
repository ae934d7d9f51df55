"""A model's own way of writing a conversation, and its tokens.

``ChatTemplate.render`` gives the text. ``encode_chat`` gives the tokens, in which the special tokens that the
template writes are special and the ones that somebody spells inside a message are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from unspool.errors import ModelFileError, ParameterError, shown

if TYPE_CHECKING:
    from jinja2 import Template

    from unspool.model.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""``role`` and ``content``, and whatever else the template reads."""

MAX_SOURCE = 1_000_000
"""Characters of the longest template that is accepted."""
_NAMES = {"role", "type"}
"""Fields that templates compare with words of their own; their values stay as they are if they are words."""


class ChatTemplate:
    """A Jinja template from a model file, run in a sandbox with limits.

    source: the template. bos, eos: the texts of the tokens that begin and end a text.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        self.source = source
        self.bos = bos
        self.eos = eos

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The conversation as text.

        add_generation_prompt: end with what begins the assistant's turn.
        continue_final_message: end within the last message instead, so that generation continues it.

        Raises ``ParameterError`` if the template refuses the messages or cannot render them, and
        ``ModelFileError`` if the template itself is broken or goes beyond its limits.
        """
        _check_messages(messages)
        if not continue_final_message:
            return self._run(messages, add_generation_prompt)
        return self._render_open(messages)

    def _render_open(self, messages: Sequence[Message]) -> str:
        """Render with a mark at the end of the last message, and cut there.

        The mark ends in a space: where the template strips messages, the space goes, and with it the white
        space that the message ends in.
        """
        final = messages[-1].get("content")
        if not isinstance(final, str):
            raise ParameterError("continue_final_message needs a last message whose content is text")
        mark = _unused_characters(1, [self.source, *_texts(messages)])[0]
        marked = [*messages[:-1], {**messages[-1], "content": f"{final}{mark} "}]
        text = self._run(marked, add_generation_prompt=False)
        before, found, after = text.rpartition(mark)
        if not found or mark in before:
            raise ParameterError(
                "continue_final_message: the chat template does not write the last message once, as it is"
            )
        return before if after.startswith(" ") else before.rstrip()

    def _run(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        from jinja2.exceptions import SecurityError, TemplateError

        from unspool.model.sandbox import TemplateComplaintError, TemplateLimitError, fresh_budget

        template = self._template
        try:
            with fresh_budget():
                return template.render(
                    messages=[dict(message) for message in messages],
                    tools=None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    bos_token=self.bos,
                    eos_token=self.eos,
                )
        except TemplateComplaintError as error:
            raise ParameterError(f"the model's chat template refuses the messages: {error}") from error
        except (TemplateLimitError, SecurityError, RecursionError, MemoryError) as error:
            raise ModelFileError(f"the model's chat template was stopped: {error}") from error
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ParameterError(f"the model's chat template cannot write these messages: {error}") from error

    @cached_property
    def _template(self) -> Template:
        from jinja2.exceptions import TemplateError

        from unspool.model.sandbox import Sandbox

        if len(self.source) > MAX_SOURCE:
            raise ModelFileError(f"the model's chat template is longer than {MAX_SOURCE} characters")
        try:
            return Sandbox().from_string(self.source)
        except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise ModelFileError(f"the model's chat template cannot be read: {error}") from error


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> list[int]:
    """The tokens of the rendered conversation; special tokens spelled inside a message are text.

    The conversation is rendered a second time with the characters that special tokens are written with
    replaced, inside messages only, by stand-ins of private use, one for one. If putting the characters back
    gives the plain rendering, each character's origin is known, and a special token is one that the template
    wrote: all of it is there with stand-ins in place. The text between special tokens is encoded in one go,
    so that it falls into the tokens that it would fall into if nobody told messages and template apart.

    A template may look into the messages (for the end of a thought, say), and render differently with
    stand-ins. Then the plain rendering counts if it has the special tokens that the template writes for
    opaque messages, and no others. Failing that, only special tokens that messages spell, and beginnings and
    ends of them at the edges of a text, are replaced; the result counts if it gives the plain rendering back
    and has the template's special tokens. Otherwise nobody can tell whose a special token is, and
    ``ParameterError`` says so.

    Raises what ``ChatTemplate.render`` raises, too.
    """

    def render(shown: Sequence[Message]) -> str:
        return template.render(shown, add_generation_prompt, continue_final_message)

    plain = render(messages)
    marked = _with_known_origins(render, plain, messages, tokenizer)
    ids: list[int] = []
    end = 0
    for match in tokenizer.special_pattern.finditer(marked):
        token = tokenizer.token_to_id(match.group())
        assert token is not None  # the pattern is made of tokens
        ids += [*tokenizer.encode(plain[end : match.start()], add_special=False), token]
        end = match.end()
    ids += tokenizer.encode(plain[end:], add_special=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)  # the template left it to the tokenizer
    return ids


def _with_known_origins(
    render: Callable[[Sequence[Message]], str],
    plain: str,
    messages: Sequence[Message],
    tokenizer: Tokenizer,
) -> str:
    """``plain``, character for character, in which only the template's special tokens can be found."""
    characters = sorted(set("".join(tokenizer.special_texts)) - set(" \t\r\n\v\f"))
    unused = _unused_characters(len(characters), [plain, *_texts(messages)])
    there = str.maketrans(dict(zip(characters, unused, strict=True)))
    back = str.maketrans(dict(zip(unused, characters, strict=True)))

    opaque = _try_render(render, _mapped(messages, lambda text: text.translate(there)))
    if opaque is not None and opaque.translate(back) == plain:
        return opaque
    spelled = _mapped(messages, lambda text: _without_specials(text, tokenizer, there))
    if spelled == _mapped(messages, lambda text: text):
        return plain  # no message spells anything of a special token
    find = tokenizer.special_pattern.findall
    if opaque is not None and find(plain) == find(opaque):
        return plain  # what messages spell did not outlive the template
    shown = _try_render(render, spelled)
    if opaque is None or shown is None or shown.translate(back) != plain or find(shown) != find(opaque):
        raise ParameterError(_undecided(messages, tokenizer.special_pattern))
    return shown


def _without_specials(text: str, tokenizer: Tokenizer, there: Mapping[int, str]) -> str:
    """``text`` with stand-ins in special tokens, and in parts of them at its beginning and its end."""
    parts = tokenizer.special_texts
    sizes = range(1, min(len(parts[0]) if parts else 1, len(text) + 1))
    head = max((n for n in sizes if any(part.endswith(text[:n]) for part in parts)), default=0)
    tail = max((n for n in sizes if any(part.startswith(text[-n:]) for part in parts)), default=0)
    middle = tokenizer.special_pattern.sub(lambda found: found.group().translate(there), text)
    # Stand-ins are one for one, so positions in ``middle`` are those in ``text``.
    middle = middle[:head].translate(there) + middle[head:]
    return middle[: len(text) - tail] + middle[len(text) - tail :].translate(there)


def _undecided(messages: Sequence[Message], specials: re.Pattern[str]) -> str:
    found = next((match.group() for text in _texts(messages) if (match := specials.search(text))), None)
    return (
        f"a message spells {'a part of a special token' if found is None else repr(found)} and the model's "
        "chat template acts on it, so that it cannot be told from the template's own; reword the message"
    )


def _try_render(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> str | None:
    """The rendering, or None where the template does not accept the messages with stand-ins."""
    try:
        return render(messages)
    except ParameterError:
        return None


def _mapped(messages: Sequence[Message], change: Callable[[str], str]) -> list[Message]:
    """The messages with every text changed, except names of roles and of kinds of content."""

    def of(value: Any, key: str) -> Any:
        if isinstance(value, str):
            return value if key in _NAMES and re.fullmatch(r"[\w-]*", value) else change(value)
        if isinstance(value, Mapping):
            return {name: of(item, str(name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [of(item, key) for item in value]
        return value

    return [of(message, "") for message in messages]


def _texts(value: Any) -> Iterator[str]:
    """Every string in ``value``."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, (list, tuple)):
        yield from chain.from_iterable(map(_texts, value))


def _unused_characters(number: int, texts: Sequence[str]) -> list[str]:
    """Characters of private use (U+F0000 and on) that are in none of ``texts``."""
    used = set().union(*texts)
    candidates = (chr(code) for code in count(0xF0000))
    return [next(c for c in candidates if c not in used) for _ in range(number)]


def _check_messages(messages: Any) -> None:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ParameterError("messages must be a list of mappings, each with a role and a content")
    if not messages:
        raise ParameterError("messages is empty; at least one message is needed")
    for index, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str):
            raise ParameterError(f"messages[{index}] must be a mapping with a role, such as 'user'")
        content = message.get("content")
        if not isinstance(content, (str, list, tuple)) and not (content is None and "tool_calls" in message):
            raise ParameterError(f"messages[{index}] must have a content that is text, not {shown(content)}")
