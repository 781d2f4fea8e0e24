"""The server's OpenAPI description, made from the structs of request bodies and errors."""

from __future__ import annotations

from typing import Any

import msgspec

from app.server.bodies import Body, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from app.server.errors import ErrorBody

_REF = "#/components/schemas/{name}"

_ERRORS = {
    400: "invalid field",
    401: "API key missing or invalid",
    403: "host or origin not allowed",
    404: "model or path not found",
    408: "request body timeout",
    413: "request body too large",
    415: "unsupported content type",
    429: "queue full",
    500: "engine error",
    503: "no model loaded, or too many connections",
}


def openapi(*, has_key: bool) -> dict[str, Any]:
    bodies = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)
    _, schemas = msgspec.json.schema_components((*bodies, ErrorBody), ref_template=_REF)
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Inferdeck", "version": "1"},
        "paths": {
            "/v1/chat/completions": {"post": _post("Chat completion", ChatBody, streams=True)},
            "/v1/completions": {"post": _post("Text completion", CompletionBody, streams=True)},
            "/v1/models": {"get": _get("List served models")},
            "/inferdeck/v1": {"get": _get("Attach endpoint: version, protocol and models")},
            "/v1/models/{name}": {"get": {**_get("Get a model by name"), "parameters": [name]}},
            "/tokenize": {"post": _post("Tokenize text or chat messages", TokenizeBody)},
            "/detokenize": {"post": _post("Detokenize token ids", DetokenizeBody)},
            "/health": {"get": _get("Health check: 200 if a model is loaded")},
            "/version": {"get": _get("Server version")},
            "/metrics": {"get": _get("Prometheus metrics", "text/plain")},
        },
        "components": {"schemas": schemas},
    }
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _post(summary: str, body: type[Body], *, streams: bool = False) -> dict[str, Any]:
    kinds = ["application/json", "text/event-stream"] if streams else ["application/json"]
    schema = {"$ref": _REF.format(name=body.__name__)}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": _responses(*kinds),
    }


def _get(summary: str, kind: str = "application/json") -> dict[str, Any]:
    return {"summary": summary, "responses": _responses(kind)}


def _responses(*kinds: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": _REF.format(name=ErrorBody.__name__)}}}
    good = {"description": "success", "content": {kind: {} for kind in kinds}}
    return {"200": good} | {
        str(status): {"description": words, "content": error} for status, words in _ERRORS.items()
    }
