"""PTX text to a Module.  PTX ISA, "Syntax", "State Spaces, Types, and Variables", "Directives".

Two passes over a function: the first cuts statements and collects the names of every { } scope, the second parses instructions with them,
since a label may be used before it stands.  Whatever is damaged raises PtxError with its line.
"""

import bisect
import re

from cudalab.emulator.declarations import parse_parameters, parse_variable, register_names
from cudalab.emulator.errors import PtxError
from cudalab.emulator.operands import Scope, parse_operand, split
from cudalab.emulator.program import Function, Instruction, Label, Location, Module, Register, Table, parts_of
from cudalab.emulator.types import TYPES

NAME = r"[A-Za-z_$%][\w$]*"
COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
SPACE = re.compile(r"\s*")
DIRECTIVE_LINE = re.compile(r"\.(?:version|target|address_size|file|loc)\b[^\n]*")
LABEL = re.compile(rf"({NAME})\s*:(?!:)")
STATEMENT = re.compile(r'(?:"[^"]*"|[^;"])*;')
FUNCTION = re.compile(rf"((?:\.(?:visible|extern|weak)\s+)*)\.(entry|func)\b\s*(?:\((.*?)\)\s*)?({NAME})\s*(?:\((.*?)\))?(.*)", re.DOTALL)
INSTRUCTION = re.compile(rf"(?:@\s*(!?)\s*({NAME})\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:\s*,\s*function_name\s+\S+?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+\d+)?")
FILE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
DIRECTIVE = re.compile(r"\.(\w+)((?:\s+\d+(?:\s*,\s*\d+)*)?)")
NUMBERED = ("maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg", "reqnctapercluster", "maxclusterrank", "explicitcluster",
            "noreturn", "blocksareclusters", "abi_preserve", "abi_preserve_control", "unique")


class Text:
    """PTX with its comments blanked, and line numbers for offsets."""

    def __init__(self, source: str):
        self.text = COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), source)
        self.newlines = [m.start() for m in re.finditer("\n", self.text)]
        self.files = {int(number): name for number, name in FILE.findall(self.text)}

    def line(self, offset: int) -> int:
        return bisect.bisect_left(self.newlines, offset) + 1

    def error(self, offset: int, why: str) -> PtxError:
        shown = " ".join(self.text[offset:offset + 60].split())
        return PtxError(f"PTX line {self.line(offset)}: {' '.join(why.split())}" + (f" at '{shown}'" if shown else ""))

    def skip(self, offset: int) -> int:
        return SPACE.match(self.text, offset).end()

    def statement(self, offset: int) -> tuple[str, int]:
        """The statement that starts here, without its semicolon, and where it ends."""
        found = STATEMENT.match(self.text, offset)
        if not found:
            raise self.error(offset, "a statement without an end")
        return found[0][:-1].strip(), found.end()

    def braces(self, offset: int) -> int:
        """Where the brace that opens here is closed again."""
        depth = 0
        for found in re.compile(r'"[^"\n]*"|[{}]').finditer(self.text, offset):
            depth += {"{": 1, "}": -1}.get(found[0], 0)
            if depth == 0:
                return found.end()
        raise self.error(offset, "a brace that is never closed")


def parse(source: str) -> Module:
    """The module that PTX text describes.  Raises PtxError for text that is damaged or uses what is not supported."""
    text = Text(source)
    version = re.search(r"^\s*\.version\s+(\d+)\.(\d+)", text.text, re.MULTILINE)
    target = re.search(r"^\s*\.target\s+(\w+)", text.text, re.MULTILINE)
    if not version or not target:
        raise PtxError("this is not PTX: it names no .version or no .target")
    module = Module((int(version[1]), int(version[2])), target[1])
    bodies, offset = [], text.skip(0)
    while offset < len(text.text):
        offset = text.skip(_module_item(text, offset, module, bodies))
    for function, scope, start in bodies:  # once all names of the module are known
        _body(text, start, function, scope)
    return module


def _module_item(text: Text, offset: int, module: Module, bodies: list) -> int:
    if found := DIRECTIVE_LINE.match(text.text, offset):
        if found[0].startswith(".address_size") and found[0].split()[1:] != ["64"]:
            raise text.error(offset, "only 64-bit addresses are supported")
        return found.end()
    if text.text.startswith(".section", offset):
        return text.braces(text.text.index("{", offset)) if "{" in text.text[offset:] else len(text.text)
    if re.compile(r"(?:\.(?:visible|extern|weak)\s+)*\.(?:entry|func)\b").match(text.text, offset):
        return _function(text, offset, module, bodies)
    statement, end = text.statement(offset)
    if re.match(r"\.(?:pragma|alias)\b", statement):
        if statement.startswith(".alias"):
            raise text.error(offset, ".alias is not supported")
        return end
    variable = parse_variable(statement, lambda why: text.error(offset, why))
    if variable.space not in ("global", "const", "shared"):
        raise text.error(offset, f"a .{variable.space} variable outside a function")
    module.variables[variable.name] = variable
    return end


def _function(text: Text, offset: int, module: Module, bodies: list) -> int:
    end = re.compile("[{;]").search(text.text, offset)
    found = end and FUNCTION.fullmatch(text.text[offset:end.start()].strip())
    if not found:
        raise text.error(offset, "a function that cannot be read")
    _, kind, returns, name, params, directives = found.groups()

    def error(why):
        return text.error(offset, why)

    function = Function(name, kind == "entry", parse_parameters(params or "", error), parse_parameters(returns or "", error),
                        _directives(directives, error))
    previous = module.functions.get(name)
    if previous is None or previous.body is None:
        if previous is None:
            module.functions[name] = function
        else:  # a prototype that others may refer to already
            previous.params, previous.returns, previous.directives = function.params, function.returns, function.directives
            function = previous
    elif end[0] == "{":
        raise error(f"{name} is defined twice")
    if end[0] == ";":
        return end.end()
    function.body = []
    bodies.append((function, Scope.of(module, function), end.end()))
    return text.braces(end.start())


def _directives(text: str, error) -> dict[str, tuple[int, ...]]:
    result, rest = {}, text.strip()
    while rest:
        found = re.match(r'\.pragma\s+"[^"]*"\s*;?', rest)
        if not found:
            found = DIRECTIVE.match(rest)
            if not found or found[1] not in NUMBERED:
                raise error(f"unknown directive '{rest.split()[0]}'")
            result[found[1]] = tuple(int(n) for n in re.findall(r"\d+", found[2]))
        rest = rest[found.end():].strip()
    return result


def _body(text: Text, offset: int, function: Function, scope: Scope) -> None:
    """Fill the function's body, which starts behind the brace at `offset`."""
    pending, location = [], None
    outermost, tables = scope, []
    while True:
        offset = text.skip(offset)
        if offset >= len(text.text):
            raise text.error(offset, f"{function.name} has no end")
        if text.text[offset] == "{":
            scope, offset = scope.inner(), offset + 1
        elif text.text[offset] == "}":
            offset += 1
            if scope is outermost:
                break
            scope = scope.outer
        elif found := DIRECTIVE_LINE.match(text.text, offset):
            location, offset = _location(text, found[0], location), found.end()
        elif found := LABEL.match(text.text, offset):
            label = found[1]
            after = text.skip(found.end())
            if re.compile(r"\.(?:callprototype|calltargets|branchtargets)\b").match(text.text, after):
                statement, end = text.statement(after)
                table = Table(label)
                scope.declare(label, table, lambda why, at=offset: text.error(at, why))
                if statement.startswith(".branchtargets"):
                    tables.append((table, statement.partition("ts")[2], scope, offset))
                offset = end
            else:
                scope.declare(label, Label(label, len(pending)), lambda why, at=offset: text.error(at, why))
                offset = found.end()
        else:
            statement, end = text.statement(offset)
            if statement.startswith("."):
                _declaration(text, offset, statement, function, scope)
            elif statement:
                pending.append((statement, offset, location, scope))
            offset = end
    for statement, at, where, inside in (*pending, ("ret", offset - 1, location, outermost)):  # the end of a body returns
        function.body.append(_instruction(text, statement, at, where, inside))
    for table, targets, inside, at in tables:
        table.labels = tuple(inside.find(t) for t in split(targets.strip()))
        if not all(isinstance(label, Label) for label in table.labels):
            raise text.error(at, "a branch table of something other than labels")


def _location(text: Text, line: str, before: Location | None) -> Location | None:
    if not line.startswith(".loc"):
        return before
    if not (found := LOC.match(line)):
        return before
    file, row, outer_file, outer_row = found.groups()

    def name(number):
        return text.files.get(int(number), f"file {number}")

    outer = Location(name(outer_file), int(outer_row)) if outer_file else None
    return Location(name(file), int(row), outer) if int(row) else before


def _declaration(text: Text, offset: int, statement: str, function: Function, scope: Scope) -> None:
    def error(why):
        return text.error(offset, why)

    if statement.startswith(".pragma"):
        return
    if found := re.match(r"\.reg\s*\.(\w+)\s+(.*)", statement, re.DOTALL):
        if found[1] not in TYPES:
            raise error(f"registers of unknown type .{found[1]}")
        for name in register_names(found[2], error):
            scope.declare(name, Register(name, TYPES[found[1]]), error)
        return
    variable = parse_variable(statement, error)
    if variable.space not in ("shared", "local", "param"):
        raise error(f"a .{variable.space} variable inside a function")
    function.variables.append(variable)
    scope.declare(variable.name, variable, error)


def _instruction(text: Text, statement: str, offset: int, location: Location | None, scope: Scope) -> Instruction:
    def error(why):
        return text.error(offset, why)

    if not (found := INSTRUCTION.fullmatch(statement)):
        raise error("an instruction that cannot be read")
    negated, predicate, mnemonic, rest = found.groups()
    guard = None
    if predicate:
        guard = scope.find(predicate)
        if not isinstance(guard, Register) or guard.type.name != "pred":
            raise error(f"{predicate} guards an instruction and is not a predicate")
    parts, types = parts_of(mnemonic)
    operands = tuple(parse_operand(operand, scope, error) for operand in split(rest)) if rest else ()
    return Instruction(mnemonic, operands, guard, negated == "!", text.line(offset), location, " ".join(statement.split()), parts, types)
