"""An op's declaration becomes the schemas of its ``torch.library`` ops.

Pure: it reads a signature, checks the declaration, and says which library ops there are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sgljit_core.errors import InvalidFamilyError
from sgljit_core.plugins.origin import NAMES_OF_PYTORCH, Origin

# torch.compile passes the arguments of an op that writes by name, through functions of its own with parameters of
# these names. In the schema such a parameter gets a trailing underscore.
_TAKEN = frozenset({"ctx", "mode"})

_OR_NONE = torch.Tensor | None  # equal to typing.Optional[torch.Tensor]

# An op that takes no tensor and returns nothing declares that it writes to this one: a graph then neither drops nor
# reorders such ops.
ORDER = inspect.Parameter("sgl_order", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=torch.Tensor)


@dataclass(frozen=True)
class Form:
    """One library op of a declaration, by its name in ``torch.ops``.

    ``parameters`` are those of the schema. Some have other names there than in the declaration: ``names``, in the same
    order, and ``mutates`` have the names of the declaration.
    """

    name: str
    parameters: Sequence[inspect.Parameter]
    names: Sequence[str]
    mutates: Sequence[str]

    @functools.cached_property
    def own_names(self) -> dict[str, str]:
        """The name of each parameter in the schema, by its name in the declaration."""
        return dict(zip(self.names, (parameter.name for parameter in self.parameters), strict=True))


@dataclass(frozen=True)
class Declaration:
    """The declaration of a function, see ``KernelFamily.op``, and where it stands.

    One that exists can become library ops: the constructor raises InvalidFamilyError for any other.
    """

    where: Origin
    function: Callable[..., Any]
    mutates: tuple[str, ...]
    inplace: str | None
    fake: Callable[..., Any] | None

    @functools.cached_property
    def name(self) -> str:
        return self.function.__name__

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """With evaluated annotations. Raises InvalidFamilyError where one cannot be evaluated."""
        try:
            return inspect.signature(self.function, eval_str=True)
        except NameError as error:
            raise InvalidFamilyError(f"{self.where}: an annotation cannot be evaluated: {error}") from error

    @functools.cached_property
    def parameters(self) -> list[inspect.Parameter]:
        return list(self.signature.parameters.values())

    @functools.cached_property
    def tensors(self) -> dict[str, bool]:
        """The parameters that are tensors, each with whether it may be None."""
        kinds = {parameter.name: parameter.annotation for parameter in self.parameters}
        return {name: kind != torch.Tensor for name, kind in kinds.items() if kind in (torch.Tensor, _OR_NONE)}

    @functools.cached_property
    def has_lists(self) -> bool:
        """Whether there are tensors inside of other parameters."""
        others = [parameter for parameter in self.parameters if parameter.name not in self.tensors]
        return any("Tensor" in str(parameter.annotation) for parameter in others)

    @functools.cached_property
    def takes_tensors(self) -> bool:
        return bool(self.tensors) or self.has_lists

    @functools.cached_property
    def returns_nothing(self) -> bool:
        return self.signature.return_annotation in (None, type(None))

    @functools.cached_property
    def returns_out(self) -> bool:
        """Whether a call returns the tensor that it writes: ``out`` if it is given, else one that ``fake`` makes."""
        return self.signature.return_annotation is torch.Tensor and len(self._optional) == 1

    @functools.cached_property
    def only_writes(self) -> bool:
        """Whether the library ops return nothing."""
        return self.returns_nothing or self.returns_out

    @functools.cached_property
    def _optional(self) -> list[str]:
        """The optional outputs."""
        return [name for name in self.mutates if self.tensors.get(name)]

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise InvalidFamilyError(f"{self.where}: {problem}")
        _ = self.schemas

    def _problems(self) -> Iterator[str]:
        names, returned = list(self.signature.parameters), self.signature.return_annotation
        if self.name in NAMES_OF_PYTORCH:
            yield (
                f"torch.ops.sgljit_{self.where.family}.{self.name} is an attribute of PyTorch's own, so no op can "
                f"have this name; choose another"
            )
        for name in names:
            if name.startswith("sgl_"):  # see forwarding
                yield f"the parameter {name!r} begins with 'sgl_', as the names of generated code do; choose another"
        if returned is inspect.Signature.empty:
            yield "annotate what it returns, -> None if nothing"
        for name in self.mutates:
            if name not in names:
                yield f"mutates names {name!r}; the parameters are {', '.join(names)}"
        if self.returns_nothing and self.takes_tensors and not self.mutates:
            yield (
                "the op returns nothing, and mutates=... names no parameter that it writes to: a compiled graph would "
                'leave it out. Write @FAMILY.op(..., mutates=("out",)), every tensor that it changes'
            )
        if not self.returns_nothing and self.takes_tensors and self.fake is None:
            yield (
                f"the op returns {returned}, and a graph must know what that looks like without computing it. Write "
                f"@FAMILY.op(..., fake=...): a function with the op's parameters that returns an empty tensor of the "
                f"right shape and dtype, such as torch.empty_like"
            )
        if self.fake is not None:
            yield from self._misfits(self.fake)
        if self.inplace is not None and (
            len(self._optional) != 1 or not self.returns_nothing or self.tensors.get(self.inplace) is not False
        ):
            yield (
                f"inplace={self.inplace!r} must name a tensor parameter that is never None; mutates must name one "
                f"tensor parameter that may be None, and the op must return nothing. Got mutates={self.mutates}, "
                f"returns {returned}"
            )

    def _misfits(self, fake: Callable[..., Any]) -> Iterator[str]:
        """Why a fake cannot be called with the op's arguments; nothing for a fake whose signature cannot be read."""
        try:
            taken = inspect.signature(fake)
        except (ValueError, TypeError):  # such as one of torch's own
            return
        required = [parameter for parameter in self.parameters if parameter.default is parameter.empty]
        # PyTorch leaves out arguments that have their default.
        for passed in (self.parameters,) if self.returns_out else (self.parameters, required):
            by_name = {parameter.name: None for parameter in passed if parameter.kind is parameter.KEYWORD_ONLY}
            try:
                taken.bind(*(None for parameter in passed if parameter.name not in by_name), **by_name)
            except TypeError as error:
                yield f"fake takes {taken}, and gets the op's arguments, {self.signature}: {error}"

    @functools.cached_property
    def out(self) -> str | None:
        """The output parameter that has a default: an input, or a new tensor. None if the op has no such parameter."""
        return self._optional[0] if self.inplace is not None or self.returns_out else None

    @functools.cached_property
    def forms(self) -> list[Form]:
        """The library ops: one, or the one that writes ``out`` and the one that works in place."""
        if self.out is None:
            parameters = self.parameters
            if self.returns_nothing and not self.takes_tensors:
                parameters = [ORDER, *parameters]
            mutates = self.mutates if self.takes_tensors else (ORDER.name,) * self.returns_nothing
            return [_form(self.name, parameters, mutates)]
        index = list(self.signature.parameters).index(self.out)
        required = [parameter.replace(default=parameter.empty) for parameter in self.parameters[: index + 1]]
        required[index] = required[index].replace(annotation=torch.Tensor)
        writes_out = _form(self.name, [*required, *self.parameters[index + 1 :]], self.mutates)
        if self.inplace is None:
            return [writes_out]
        others = [parameter for parameter in self.parameters if parameter.name != self.out]
        rest = [name for name in self.mutates if name not in (self.out, self.inplace)]
        return [writes_out, _form(f"{self.name}_", others, (self.inplace, *rest))]

    @functools.cached_property
    def schemas(self) -> list[str]:
        """The schemas of the library ops, without their names. Raises InvalidFamilyError: the annotations make none."""
        return [self._text_of(form) for form in self.forms]

    def _text_of(self, form: Form) -> str:
        def prototype() -> None:
            """Never called: ``infer_schema`` reads its signature."""

        annotation = None if self.only_writes else self.signature.return_annotation
        signature = inspect.Signature(form.parameters, return_annotation=annotation)
        prototype.__signature__ = signature  # type: ignore[attr-defined]
        try:
            return torch.library.infer_schema(prototype, mutates_args=[form.own_names[name] for name in form.mutates])
        except (ValueError, TypeError) as error:
            raise InvalidFamilyError(
                f"{self.where}: its signature is no torch.library schema: {error}. Annotate every parameter and the "
                f"return value, and name every tensor that the op writes to in mutates=(...)"
            ) from error


def _form(name: str, parameters: Sequence[inspect.Parameter], mutates: Sequence[str]) -> Form:
    names = [parameter.name for parameter in parameters]
    return Form(name, [p.replace(name=f"{p.name}_") if p.name in _TAKEN else p for p in parameters], names, mutates)
