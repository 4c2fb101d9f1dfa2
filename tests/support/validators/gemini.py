"""Requests of Google's Gemini API, by the rules of its newest models: calls of the turn at hand carry signatures.

Signatures of the fake server prove themselves (`sign`), so that one changed byte is seen.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")
_KNOWN = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"}
_GENERATION = {
    "temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "responseMimeType", "responseJsonSchema",
    "responseSchema", "thinkingConfig", "candidateCount", "seed",
}  # fmt: skip
_DATA = ("text", "functionCall", "functionResponse", "inlineData")
_LEVELS = {"MINIMAL", "LOW", "MEDIUM", "HIGH"}
PLACEHOLDER = "skip_thought_signature_validator"


def sign(text: str = "") -> str:
    """A signature as the fake issues them: base64 of the standard alphabet, with a checksum inside."""
    inner = hashlib.sha512(text.encode("utf-8", "surrogatepass")).digest()
    return base64.b64encode(inner + hashlib.sha256(inner).digest()[:8]).decode()


def violations(body: Any) -> list[str]:
    """Why the service would answer 400; empty for a valid request."""
    if not isinstance(body, dict):
        return ["the body is not an object"]
    found = [f'Unknown name "{key}": Cannot find field.' for key in body if key not in _KNOWN]
    config = body.get("generationConfig", {})
    found += [f'Unknown name "{key}" at generation_config' for key in config if key not in _GENERATION]
    thinking = config.get("thinkingConfig", {})
    if not isinstance(thinking.get("thinkingBudget", 0), int) or thinking.get("thinkingLevel", "LOW") not in _LEVELS:
        found.append("generation_config.thinking_config: invalid value")
    found += _tools(body)
    if "systemInstruction" in body:
        found += [f"system_instruction: {problem}" for problem in _parts(body["systemInstruction"], "user")]
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return [*found, "contents is not specified"]
    for index, content in enumerate(contents):
        role = content.get("role")
        if role not in ("user", "model"):
            found.append(f"contents[{index}]: Please use a valid role: user, model.")
        found += [f"contents[{index}]: {problem}" for problem in _parts(content, role)]
    return found or _order(contents) + _signatures(contents)


def _tools(body: dict[str, Any]) -> list[str]:
    declared = [each for tool in body.get("tools", []) for each in tool.get("functionDeclarations", [])]
    names = [each.get("name") for each in declared]
    found = [f"tools: Invalid function name {name!r}" for name in names if not _NAME.match(str(name))]
    if len(set(names)) != len(names):
        found.append("tools: Duplicate function declaration found")
    if "tools" in body and not declared:
        found.append("tools: must declare something")
    return found


def _parts(content: dict[str, Any], role: str) -> list[str]:
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts:
        return ["contents.parts must not be empty."]
    return [f"parts[{at}]: {problem}" for at, part in enumerate(parts) for problem in _part(part, role)]


def _part(part: dict[str, Any], role: str) -> list[str]:
    given = [name for name in _DATA if name in part]
    if len(given) != 1:
        return ["required oneof field 'data' must have one initialized field"]
    found = [f"Unknown name {key!r}" for key in part if key not in (*given, "thought", "thoughtSignature")]
    signature = part.get("thoughtSignature")
    if signature is not None and signature != PLACEHOLDER and not _is_true(signature):
        found.append("Corrupted thought signature.")
    if role == "user" and ("thought" in part or signature is not None or "functionCall" in part):
        found.append("only the model thinks and calls")
    value = part[given[0]]
    match given[0]:
        case "text":
            if not isinstance(value, str) or any("\ud800" <= char <= "\udfff" for char in value):
                found.append("text: invalid")
            elif not value.strip() and signature is None and role == "user":
                found.append("Unable to submit request because it must have a text parameter.")
        case "functionCall":
            if not _NAME.match(str(value.get("name"))) or not isinstance(value.get("args", {}), dict):
                found.append("function_call: bad name or args")
            if any("\ud800" <= char <= "\udfff" for char in str(value)):
                found.append("function_call: lone surrogate")
        case "functionResponse":
            if role != "user" or not isinstance(value.get("response"), dict) or not _NAME.match(str(value.get("name"))):
                found.append("function_response: bad role, name or response")
        case "inlineData":
            found += _image(value)
    return found


def _image(data: dict[str, Any]) -> list[str]:
    try:
        good = str(data.get("mimeType")).startswith("image/") and bool(base64.b64decode(data["data"], validate=True))
    except (ValueError, KeyError):
        good = False
    return [] if good else ["inline_data: invalid"]


def _is_true(signature: str) -> bool:
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError:
        return False
    return raw[64:] == hashlib.sha256(raw[:64]).digest()[:8]


def _order(contents: list[dict[str, Any]]) -> list[str]:
    """The user begins and ends; results stand alone, right after their calls, as many and in the same order."""
    found: list[str] = []
    if contents[0]["role"] != "user" or contents[-1]["role"] != "user":
        found.append("Please ensure that the conversation begins and ends with a user turn.")
    calls: list[Any] = []
    for index, content in enumerate(contents):
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if [(result["name"], result.get("id")) for result in results] != calls:
            found.append(f"contents[{index}]: the function responses are not those of the function call turn before")
        if results and len(results) != len(content["parts"]):
            found.append(f"contents[{index}]: function responses stand alone")
        made = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        calls = [(call["name"], call.get("id")) for call in made]
        before = contents[index - 1] if index else None
        if before and before["role"] == content["role"]:
            after_results = content["role"] == "user" and "functionResponse" in before["parts"][0]
            if not after_results or results:
                found.append(f"contents[{index}]: roles must alternate between user and model")
    return found


def _signatures(contents: list[dict[str, Any]]) -> list[str]:
    """In the turn at hand, which begins at the last text of the user, the first call of each step has a signature."""
    found: list[str] = []
    for index in range(len(contents) - 1, -1, -1):
        parts = contents[index]["parts"]
        if contents[index]["role"] == "user" and "functionResponse" not in parts[0]:
            break
        first = next((part for part in parts if "functionCall" in part), None)
        if first is not None and not first.get("thoughtSignature"):
            found.append(f"contents[{index}]: Function call is missing a thought_signature in functionCall parts.")
    return found
