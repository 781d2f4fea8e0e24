"""The OpenAPI description of the server, made from the declared fields."""

from __future__ import annotations

from typing import Any

from app.server.bodies import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Body

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_REFUSALS = {
    400: "a field is wrong",
    401: "the API key is missing or wrong",
    403: "the host or the page is not allowed",
    404: "there is no such model or path",
    408: "the body came too slowly",
    413: "the body is too large",
    415: "the body is not declared as JSON",
    429: "the queue is full",
    500: "the engine failed",
    503: "no model is loaded, or too many connections are open",
}


def openapi(*, has_key: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Inferdeck", "version": "1"},
        "paths": {
            "/v1/chat/completions": {"post": _post("Reply to a conversation", CHAT, streams=True)},
            "/v1/completions": {"post": _post("Continue prompts", COMPLETION, streams=True)},
            "/v1/models": {"get": _get("The model that serves")},
            "/inferdeck/v1": {"get": _get("What a window elsewhere can attach to")},
            "/v1/models/{name}": {"get": {**_get("The model of this name"), "parameters": [_NAME]}},
            "/tokenize": {"post": _post("Token ids of a text or a conversation", TOKENIZE)},
            "/detokenize": {"post": _post("The text of token ids", DETOKENIZE)},
            "/health": {"get": _get("Whether a model serves")},
            "/version": {"get": _get("The program's version")},
            "/metrics": {"get": _get("Metrics for Prometheus", "text/plain")},
        },
        "components": {"schemas": {"Error": _ERROR}},
    }
    if has_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def _post(summary: str, body: Body, *, streams: bool = False) -> dict[str, Any]:
    kinds = ["application/json", "text/event-stream"] if streams else ["application/json"]
    return {
        "summary": summary,
        "requestBody": {
            "required": True, "content": {"application/json": {"schema": body.schema()}},
        },
        "responses": _responses(kinds),
    }  # fmt: skip


def _get(summary: str, kind: str = "application/json") -> dict[str, Any]:
    return {"summary": summary, "responses": _responses([kind])}


def _responses(kinds: list[str]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    good = {"description": "done", "content": {kind: {} for kind in kinds}}
    return {"200": good} | {
        str(status): {"description": words, "content": error} for status, words in _REFUSALS.items()
    }
