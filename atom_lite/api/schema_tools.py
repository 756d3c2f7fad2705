"""The request fields about tools: what may be called, what must be, and what has been."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from atom_lite.api.faults import conflict
from atom_lite.api.schema import JsonObject

MAX_TOOLS = 1024

FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


class FunctionDefinition(JsonObject):
    """What a function is for, and the JSON schema of its parameters; none means any object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema_(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.parameters or {"type": "object"}


class Tool(JsonObject):
    """A function; other types of tools are refused by name."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionChoice(JsonObject):
    """A function by name."""

    name: FunctionName


class NamedTool(JsonObject):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(JsonObject):
    """Some of the declared tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(JsonObject):
    """OpenAI's way to narrow the tools without declaring them anew."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class CalledFunction(JsonObject):
    """A call of an earlier turn; the arguments are a JSON object, as text or as it is."""

    name: FunctionName
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(JsonObject):
    """A call that the assistant made in an earlier turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolFields(BaseModel):
    """The part of a chat request that is about tools."""

    tools: Annotated[list[Tool], Field(min_length=1, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> ToolFields:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise conflict("tools", f"'tools' declares the function {twice!a} more than once")
        if not names and self.tool_choice not in (None, "none", "auto"):
            raise conflict("tool_choice", "'tool_choice' needs 'tools'")
        for name in self.chosen_names:
            if name not in names:
                raise conflict(
                    "tool_choice", f"'tool_choice': no tool {name!a} is declared in 'tools'"
                )
        return self

    @property
    def chosen_names(self) -> list[str]:
        """The functions that `tool_choice` names."""
        if isinstance(self.tool_choice, NamedTool):
            return [self.tool_choice.function.name]
        if isinstance(self.tool_choice, AllowedToolsChoice):
            return [tool.function.name for tool in self.tool_choice.allowed_tools.tools]
        return []

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools that the model may call in this answer."""
        if self.tool_choice == "none":
            return []
        chosen = self.chosen_names
        return [tool for tool in self.tools or () if not chosen or tool.function.name in chosen]

    @property
    def calling(self) -> Literal["none", "auto", "required", "named"]:
        """What `tool_choice` comes down to."""
        if not self.usable_tools:
            return "none"
        if isinstance(self.tool_choice, NamedTool):
            return "named"
        if isinstance(self.tool_choice, AllowedToolsChoice):
            return self.tool_choice.allowed_tools.mode
        return self.tool_choice or "auto"
