"""Command line and TOML -> Config; `atom-lite serve MODEL` and `python -m atom_lite.serve`.

The flags are made from the fields of the config tree, so that a setting is written once.
Precedence: defaults, then `--config FILE`, then flags. Every mistake is a ConfigError: one line,
exit code 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import sys
import tomllib
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from atom_lite import __version__
from atom_lite.config import KV_CONSUMER, Config, SchedulerConfig
from atom_lite.config_scheduling import WHOLE_PROMPT_POLICIES
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

# Flags of other servers that are known and refused, so that nobody waits for an effect.
_OUT_OF_SCOPE = {
    "--enable-lora": "LoRA is out of scope",
    "--lora-modules": "LoRA is out of scope",
    "--speculative-config": "speculative decoding is out of scope",
    "--num-speculative-tokens": "speculative decoding is out of scope",
    "--data-parallel-size": "data parallelism is out of scope",
    "--limit-mm-per-prompt": "images and audio are out of scope",
    "--kv-cache-dtype": "the KV cache has the model's dtype; others are not supported yet",
    "--enable-auto-tool-choice": "tool calling is not supported yet",
    "--tool-call-parser": "tool calling is not supported yet",
    "--reasoning-parser": "reasoning parsers are not supported yet",
}
_INT_LIMIT = 2**63
_SUFFIXES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}


class _Parser(argparse.ArgumentParser):
    """Argparse that raises ConfigError where the original prints usage and exits."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse_config(argv: list[str]) -> Config:
    """Turn the arguments of `serve` into a checked Config.

    Args:
        argv: without the program's name, e.g. `["MODEL", "--port", "0"]`.

    Raises:
        ConfigError: an unknown or refused flag, a bad value, an unreadable TOML file.
    """
    parser = build_parser()
    arguments, unknown = parser.parse_known_args([_dashed(word) for word in argv])
    for word in unknown:
        flag = word.split("=")[0]
        reason = _OUT_OF_SCOPE.get(flag)
        raise ConfigError(f"{flag}: {reason}" if reason else f"unrecognized argument: {word}")
    given = vars(arguments)
    config_file = given.pop("config", None)
    positional = given.pop("positional_model", None)
    if positional is not None:
        if "model.model" in given:
            raise ConfigError(f"the model is given twice: {positional} and --model")
        given["model.model"] = positional
    settings = _read_toml(Path(config_file)) if config_file is not None else {}
    settings.update({key: _tupled(value) for key, value in given.items()})
    if "server.api_key" not in settings and os.environ.get("ATOM_LITE_API_KEY"):
        settings["server.api_key"] = (os.environ["ATOM_LITE_API_KEY"],)
    return _build(settings)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `serve`: one group per table of the config tree."""
    parser = _Parser(
        prog="python -m atom_lite.serve",
        description="Serve a model behind the OpenAI API.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"atom_lite {__version__}")
    parser.add_argument(
        "positional_model", nargs="?", metavar="MODEL", help="Same as --model.", default=None
    )
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file of settings; flags win over it."
    )
    for table in dataclasses.fields(Config):
        section = _section_class(table.name)
        group = parser.add_argument_group(table.name, (section.__doc__ or "").strip())
        hints = typing.get_type_hints(section)
        for field in dataclasses.fields(section):
            _add_flag(group, f"{table.name}.{field.name}", field, hints[field.name])
    return parser


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `atom-lite` script: `atom-lite serve [MODEL] [flags]`."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["--version"]:
        sys.stdout.write(f"atom_lite {__version__}\n")
        return 0
    if words[:1] != ["serve"]:
        sys.stderr.write("usage: atom-lite serve [MODEL] [flags]   (see atom-lite serve --help)\n")
        return 0 if words[:1] in (["--help"], ["-h"]) else 2
    from atom_lite import serve  # the launcher's imports are not needed for a usage line

    return serve.main(words[1:])


def _section_class(name: str) -> type[Any]:
    hint: type[Any] = typing.get_type_hints(Config)[name]
    return hint


def _dashed(word: str) -> str:
    """`--a_b=c_d` -> `--a-b=c_d`: both spellings of a flag are taken."""
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bare_type(hint: Any) -> Any:
    """`int | None` -> int; `int | Literal["auto"] | None` -> int; `tuple[str, ...]` -> tuple."""
    if _words(hint) or isinstance(hint, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        (hint,) = [part for part in parts if typing.get_origin(part) is not typing.Literal]
    return tuple if typing.get_origin(hint) is tuple else hint


def _words(hint: Any) -> tuple[str, ...]:
    """The words that may stand in the place of a number."""
    literals = [p for p in typing.get_args(hint) if typing.get_origin(p) is typing.Literal]
    return tuple(word for literal in literals for word in typing.get_args(literal))


def _add_flag(
    group: argparse._ArgumentGroup, destination: str, field: dataclasses.Field[Any], hint: Any
) -> None:
    kind = _bare_type(hint)
    names = ["--" + field.name.replace("_", "-")]
    if field.metadata["short"]:
        names.append(field.metadata["short"])
    text = field.metadata["help"]
    if field.default not in (None, ()):
        shown = " ".join(field.default) if isinstance(field.default, tuple) else field.default
        text += f" Default: {shown}."
    text = text.replace("%", "%%")
    options: dict[str, Any] = {"dest": destination, "help": text, "default": argparse.SUPPRESS}
    if kind is bool:
        group.add_argument(*names, action=argparse.BooleanOptionalAction, **options)
        return
    placeholder = {int: "N", float: "X"}.get(kind, "WORD")
    options["metavar"] = field.metadata["metavar"] or (
        None if field.metadata["choices"] else placeholder
    )
    if kind is tuple:
        options["nargs"] = "+"
    else:
        parsers: dict[Any, Callable[[str], Any]] = {int: parse_count, float: float}
        parse = parsers.get(kind, str)
        options["type"] = _parse_or_word(parse, _words(hint))
    group.add_argument(*names, choices=field.metadata["choices"], **options)


def _parse_or_word(parse: Callable[[str], Any], words: tuple[str, ...]) -> Callable[[str], Any]:
    return (lambda text: text if text in words else parse(text)) if words else parse


def parse_count(text: str) -> int:
    """An integer, also as 8k (8000) or 8K (8192)."""
    scale = _SUFFIXES.get(text[-1:], 1)
    digits = text if scale == 1 else text[:-1]
    try:
        return int(digits) * scale if scale == 1 else int(float(digits) * scale)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(
            f"expected an integer such as 8192, 8k or 8K, got {text!r}"
        ) from error


def _read_toml(path: Path) -> dict[str, Any]:
    """Flatten a TOML file into {"table.key": value}; unknown names and wrong types are refused."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    tables = {table.name for table in dataclasses.fields(Config)}
    settings: dict[str, Any] = {}
    for name, table in document.items():
        if name not in tables or not isinstance(table, dict):
            known = ", ".join(sorted(tables))
            raise ConfigError(f"--config {path}: unknown table [{name}]; known: {known}")
        hints = typing.get_type_hints(_section_class(name))
        for key, value in table.items():
            if key not in hints:
                raise ConfigError(f"--config {path}: unknown key {name}.{key}")
            settings[f"{name}.{key}"] = _checked_toml(f"{path}: {name}.{key}", value, hints[key])
    return settings


def _checked_toml(where: str, value: Any, hint: Any) -> Any:
    kind = _bare_type(hint)
    if isinstance(value, str) and value in _words(hint):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is tuple:
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif type(value) is kind:
        return value
    wanted = "a list of strings" if kind is tuple else kind.__name__
    raise ConfigError(f"--config {where}: expected {wanted}, got {value!r}")


def _build(settings: dict[str, Any]) -> Config:
    sections: dict[str, Any] = {}
    for table in dataclasses.fields(Config):
        section = _section_class(table.name)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(section):
            key = f"{table.name}.{field.name}"
            if key in settings:
                _check_range(field, settings[key])
                _check_usable(field, settings[key])
                values[field.name] = settings[key]
        sections[table.name] = section(**values)
    config = Config(**sections)
    _check_together(config)
    return config


def _check_usable(field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse values of the right type that nothing can be done with, or that mean an accident.

    An empty word mostly is a shell variable that is not set: as an API key it would let everybody
    in, as a host it would mean every interface.
    """
    flag = "--" + field.name.replace("_", "-")
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, str):
            if not item and field.default != "":
                raise ConfigError(f"{flag}: must not be empty")
            if not _is_unicode(item):
                raise ConfigError(f"{flag} {item!a}: is not valid UTF-8")
            if field.name == "api_key" and any(c.isspace() or not c.isprintable() for c in item):
                raise ConfigError(f"{flag}: a key with spaces in it cannot be sent in a header")
        elif isinstance(item, float) and not math.isfinite(item):
            raise ConfigError(f"{flag} {item}: must be a finite number")
        elif isinstance(item, int) and abs(item) >= _INT_LIMIT:
            raise ConfigError(f"{flag} {item}: must be less than {_INT_LIMIT}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of the command line that were no UTF-8
        return False
    return True


def _check_range(field: dataclasses.Field[Any], value: Any) -> None:
    flag = "--" + field.name.replace("_", "-")
    choices, least, most = (field.metadata[key] for key in ("choices", "minimum", "maximum"))
    if choices and value not in choices:
        raise ConfigError(f"{flag} {value}: must be one of {', '.join(choices)}")
    if isinstance(value, str):
        return
    if least is not None and not value >= least:
        raise ConfigError(f"{flag} {value}: must be at least {least}")
    if most is not None and not value <= most:
        raise ConfigError(f"{flag} {value}: must be at most {most}")


def _check_together(config: Config) -> None:
    """Rules that span fields."""
    budget, num_seqs = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    if isinstance(budget, int) and budget < num_seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {budget}: must be at least --max-num-seqs ({num_seqs}), "
            "so that every running sequence gets its token in each step"
        )
    if config.chunking.enable_dynamic_chunking and config.transfer.kv_role != KV_CONSUMER:
        if config.parallel.pipeline_parallel_size == 1:
            raise ConfigError(
                "--enable-dynamic-chunking: there is no pipeline to keep busy with "
                "--pipeline-parallel-size 1"
            )
        if not config.scheduler.enable_chunked_prefill:
            raise ConfigError("--enable-dynamic-chunking needs --enable-chunked-prefill")
        if config.scheduler.policy in WHOLE_PROMPT_POLICIES:
            raise ConfigError(
                "--enable-dynamic-chunking: there are no chunks with --batching-policy "
                f"{config.scheduler.policy}, which runs whole prompts"
            )
    if not config.scheduler.enable_hybrid_batching and (config.scheduler.policy != "stall-free"):
        raise ConfigError(
            "--no-enable-hybrid-batching goes with --batching-policy stall-free alone, not with "
            f"{config.scheduler.policy}"
        )
    _check_objectives(config.scheduler)
    _ = config.transfer.kv_role, config.model.generation_overrides  # say what is wrong with them
    if config.parallel.tensor_parallel_size > 1:
        raise ConfigError("--tensor-parallel-size: more than 1 rank is not supported yet")


def _check_objectives(scheduler: SchedulerConfig) -> None:
    """Policies and budgets that follow objectives need one, and chunks."""
    if scheduler.policy == "slo":
        if not scheduler.enable_chunked_prefill:
            raise ConfigError("--batching-policy slo sizes chunks: it needs chunked prefill")
        if scheduler.auto_budget:
            raise ConfigError(
                "--max-num-batched-tokens auto: --batching-policy slo sizes each step itself"
            )
    if scheduler.auto_budget and scheduler.tbt_slo_ms is None:
        raise ConfigError("--max-num-batched-tokens auto needs an objective: --tbt-slo-ms")
    if scheduler.auto_budget and scheduler.policy in WHOLE_PROMPT_POLICIES:
        raise ConfigError(
            "--max-num-batched-tokens auto: there are no chunks with --batching-policy "
            f"{scheduler.policy}, which runs whole prompts"
        )
