"""The HTTP routes and their handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from app.paths import program_version
from app.server import bodies, reply
from app.server.attach_hub import Hub
from app.server.attach_stream import Stream
from app.server.body_reader import BodyReader
from app.server.call import Call, new_call_id
from app.server.call_log import CallLog, Logged, arrival_of
from app.server.connection import Guard
from app.server.engine_client import EngineClient
from app.server.errors import ApiError, error_of, unavailable
from app.server.metrics import exposition
from app.server.openapi import openapi
from app.server.options import ServerOptions
from app.server.tokens import TokenizerWorker, chat_work, check_token_ids, decode_all
from app.server.unsupported import IGNORED_HEADER, ignored_header
from app.storage.model_sources import OLD_STARTER_NAME, STARTER_TITLE
from app.wire.protocol import PATH, STREAM_PATH, VERSION
from engine.snapshot import ModelInfo
from engine.text.encoder import without_surrogates
from engine.text.work import Text, Work

log = logging.getLogger(__name__)

AnyBody = TypeVar("AnyBody", bound=bodies.Body)
Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Any]]
MAX_NAMED_FIELDS = 100
IGNORED = "inferdeck.ignored"
"""Names of ignored fields, in the scope of a request."""


class Api:
    """The handlers. `started`: seconds since 1970, when the server started. `calls`: log of
    finished calls."""

    def __init__(
        self,
        engine: EngineClient,
        tokens: TokenizerWorker,
        options: ServerOptions,
        started: int,
        hub: Hub,
        calls: CallLog | None = None,
    ) -> None:
        self._hub = hub
        self._engine = engine
        self._tokens = tokens
        self._options = options
        self._started = started
        self._calls = calls
        self._bodies = BodyReader(options.limits)
        self._unknown: set[str] = set()

    def app(self) -> ASGIApp:
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/v1/chat/completions", partial(self._reply, reply.ChatShape)),
            ("POST", "/v1/completions", partial(self._reply, reply.CompletionShape)),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{name:path}", self.model),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/health", self.health),
            ("GET", "/version", self.version),
            ("GET", "/metrics", self.metrics),
            ("GET", "/openapi.json", self.openapi),
            ("GET", PATH, self.stream_facts),
        ]
        middleware = [Middleware(Guard, self._options)]
        if self._options.cors_origins:
            cors = Middleware(
                CORSMiddleware,
                allow_origins=list(self._options.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=[IGNORED_HEADER, "Retry-After"],
            )
            middleware.insert(0, cors)
        if self._calls is not None:
            middleware.insert(0, Middleware(Logged, self._calls))
        return Starlette(
            routes=[
                *(Route(path, _safe(handle), methods=[method]) for method, path, handle in routes),
                WebSocketRoute(STREAM_PATH, lambda socket: Stream(self._hub, socket).run()),
            ],
            middleware=middleware,
            exception_handlers={HTTPException: _on_http_error},
        )

    # -- replies ----------------------------------------------------------------------------

    async def _reply(self, shape: type[reply.Shape], request: Request) -> reply.Reply:
        arrival = arrival_of(request.scope)
        body = await self._body(request, shape.body)
        model, config = self._engine.serving()
        params, prompts = body.sampling(self._options.limits), body.prompts(self._options.limits)
        encoded, tokenizer = await self._tokens.encode(
            model, prompts, params, config.max_model_len, _client(request)
        )
        name, call_id = self._name_of(model), new_call_id(shape.prefix)
        call = Call(call_id, name, model.path, encoded, body, arrival=arrival)
        outputs = self._engine.send(call.requests(), self._options.limits.max_queued)
        answer = reply.StreamedReply if body.stream else reply.Reply
        headers = ignored_header(request.scope.get(IGNORED, ()))
        return answer(outputs, shape(call, tokenizer.token_bytes), headers)

    # -- what serves ------------------------------------------------------------------------

    async def models(self, request: Request) -> Json:
        model, config = self._engine.serving()
        card = self._card(model, config.max_model_len)
        return {"object": "list", "data": [card]}

    async def model(self, request: Request) -> Json:
        model, config = self._engine.serving()
        self._check_model(model, request.path_params["name"])
        return self._card(model, config.max_model_len)

    async def health(self, request: Request) -> Json | Response:
        """503 while the engine is stuck or dead, or serves no model. `seconds_since_beat`: of the
        step or command `doing`; 0 while idle."""
        engine = self._engine
        beat: Json = {}
        if (pulse := engine.pulse()) is not None:
            beat = {"doing": pulse.doing or "idle", "seconds_since_beat": round(pulse.seconds, 3)}
        elif (stalled := engine.attach_state.stalled) is not None:
            beat = {"doing": stalled.doing, "seconds_since_beat": round(stalled.seconds, 3)}
        if not engine.is_stuck:
            engine.serving()
            return {"status": "ok", **beat}
        error = unavailable("The engine does not respond.", "engine_stuck")
        body = {"status": "stuck", **beat, **msgspec.to_builtins(error.body())}
        return reply.json_response(body, error.status, error.headers)

    async def version(self, request: Request) -> Json:
        return {"version": program_version()}

    async def metrics(self, request: Request) -> Response:
        model = self._engine.model
        name = self._name_of(model) if model is not None else self._options.model_name
        pulse = self._engine.pulse()
        self._engine.metrics.observe_heartbeat(None if pulse is None else pulse.seconds)
        now, accept = self._engine.metrics.snapshot(), request.headers.get("accept", "")
        # on a thread: no token waits for it
        data, kind = await asyncio.to_thread(exposition, now, name, accept)
        return Response(data, headers={"content-type": kind})

    async def openapi(self, request: Request) -> Json:
        return openapi(has_key=self._options.api_key is not None)

    # -- tokens -----------------------------------------------------------------------------

    async def tokenize(self, request: Request) -> Json:
        body = await self._body(request, bodies.TokenizeBody)
        model, config = self._engine.serving()

        tokenizer = await self._tokens.tokenizer(model)
        if body.messages is not None:
            work: Work = chat_work(bodies.plain_messages(body.messages))
        else:
            text, bare = without_surrogates(body.prompt or ""), body.add_special_tokens is False
            work = Text(text, special=not bare)
        token_ids = await self._tokens.token_ids(tokenizer, work, _client(request))
        texts = None
        if body.return_token_strs:
            texts = await self._tokens.run(lambda: list(map(tokenizer.token_text, token_ids)))
        return {
            "count": len(token_ids),
            "max_model_len": config.max_model_len,
            "tokens": token_ids,
            "token_strs": texts,
        }

    async def detokenize(self, request: Request) -> Json:
        body = await self._body(request, bodies.DetokenizeBody)
        model, _ = self._engine.serving()
        check_token_ids(body.tokens, model.vocab_size, "tokens")
        tokenizer = await self._tokens.tokenizer(model)
        return {"prompt": await self._tokens.run(partial(decode_all, tokenizer, body.tokens))}

    # -- windows elsewhere ------------------------------------------------------------------

    async def stream_facts(self, request: Request) -> Json:
        """What a window may learn before it attaches."""
        model = self._engine.model
        return {
            "program": "inferdeck",
            "version": program_version(),
            "protocol": VERSION,
            "model": None if model is None else self._name_of(model),
            "models": [offer.name for offer in self._hub.offers.all()],
            "allows_control": self._options.allows_control,
        }

    # -- what they share --------------------------------------------------------------------

    async def _body(self, request: Request, kind: type[AnyBody]) -> AnyBody:
        given = await self._bodies.read_json(request)
        body = kind.read(given)
        request.scope[IGNORED] = unknown = kind.unknown(given)
        self._report_unknown(unknown)
        model, _ = self._engine.serving()
        if body.model is not None:
            self._check_model(model, body.model)
        return body

    def _report_unknown(self, names: list[str]) -> None:
        """Unknown fields are ignored, as in vLLM, named in the reply, and logged once per name."""
        for name in names:
            if name not in self._unknown and len(self._unknown) < MAX_NAMED_FIELDS:
                self._unknown.add(name)
                log.warning("ignored unknown request field %.60r", name)

    def _check_model(self, model: ModelInfo, name: str) -> None:
        is_old = name == OLD_STARTER_NAME and self._name_of(model) == STARTER_TITLE
        if name != self._name_of(model) and not is_old:
            raise ApiError(
                404, f"Unknown model {name[:100]!r}. Available: {self._name_of(model)!r}.",
                param="model", code="model_not_found",
            )  # fmt: skip

    def _name_of(self, model: ModelInfo) -> str:
        return self._options.model_name or model.name

    def _card(self, model: ModelInfo, max_model_len: int | None) -> Json:
        return {
            "id": self._name_of(model),
            "object": "model",
            "created": self._started,
            "owned_by": "inferdeck",
            "root": model.name,
            "parent": None,
            "max_model_len": max_model_len,
        }


def _client(request: Request) -> str:
    """By whom texts take turns."""
    return request.client.host if request.client is not None else ""


def _safe(handle: Handler) -> Handler:
    """Converts results to JSON and errors to error objects."""

    async def answer(request: Request) -> Any:
        try:
            found = await handle(request)
            return reply.json_response(found) if isinstance(found, dict) else found
        except BaseException as error:
            return reply.error_response(error_of(error))

    return answer


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "Path not found.", 405: "Method not allowed for this path."}
    codes = {404: "path_not_found", 405: "method_not_allowed"}
    message = words.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    code = codes.get(error.status_code)
    return reply.error_response(ApiError(error.status_code, message, code=code, headers=headers))
