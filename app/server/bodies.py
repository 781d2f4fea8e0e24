"""What each route takes: OpenAI's fields, and vLLM's beyond them where the engine has them."""

from __future__ import annotations

from app.server.fields import (
    BIASES,
    BOOLEAN,
    INTEGER,
    NUMBER,
    OBJECT,
    OBJECTS,
    PROMPTS,
    TEXT,
    TEXTS,
    TOKEN_IDS,
    Body,
    Field,
    Refused,
)

SAMPLING = (
    Field("temperature", NUMBER, "0 is greedy; default 1"),
    Field("top_p", NUMBER, "keep the fewest tokens whose probabilities add up to it"),
    Field("top_k", INTEGER, "keep the most probable tokens; 0 or -1 keeps all"),
    Field("min_p", NUMBER, "keep tokens at least so many times as probable as the best"),
    Field("repetition_penalty", NUMBER, "above 1: tokens seen before become less probable"),
    Field("presence_penalty", NUMBER, "off the logit of a token generated before, once"),
    Field("frequency_penalty", NUMBER, "off the logit for each time the token was generated"),
    Field("logit_bias", BIASES, "added to the logits of tokens"),
    Field("seed", INTEGER, "with it the reply is the same whatever runs beside it"),
    Field("min_tokens", INTEGER, "no end before so many tokens"),
    Field("stop", TEXTS, "end before one of these texts"),
    Field("stop_token_ids", TOKEN_IDS, "end at one of these tokens"),
    Field("ignore_eos", BOOLEAN, "go on after the model's end of text"),
    Field("include_stop_str_in_output", BOOLEAN, "keep the stop text in the reply"),
)
"""Fields of SamplingParams under the same names."""

SAMPLING_NAMES = tuple(field.name for field in SAMPLING)

_COMMON = (
    Field("model", TEXT, "the name under /v1/models; may be left out"),
    *SAMPLING,
    Field("max_tokens", INTEGER, "most tokens of a reply"),
    Field("n", INTEGER, "replies to each prompt"),
    Field("stream", BOOLEAN, "send the reply as server-sent events while it is written"),
    Field("stream_options", OBJECT, "include_usage, continuous_usage_stats"),
    Field("return_token_ids", BOOLEAN, "report the token ids of prompt and reply"),
)

_IGNORED = frozenset(
    (
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "parallel_tool_calls", "reasoning_effort", "verbosity",
        "request_id", "priority",
    )
)  # fmt: skip
"""Fields of OpenAI and vLLM that do not change what a reply is here."""

_GUIDED = "replies cannot be held to a grammar or schema."
_TOOLS = "tools are not called here. Describe them in the prompt instead."

_REFUSED = (
    Refused("response_format", _GUIDED, ({"type": "text"},)),
    *(Refused(name, _GUIDED) for name in (
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    )),
    Refused("use_beam_search", "replies are sampled.", (False,)),
    Refused("best_of", "ask for n replies and choose.", (1,)),
    Refused("length_penalty", "it belongs to beam search.", (1, 1.0)),
    Refused("bad_words", "give logit_bias for their tokens.", ([],)),
    Refused("allowed_token_ids", "give logit_bias for the others."),
    Refused("prompt_logprobs", "log probabilities are those of the reply."),
    Refused("truncate_prompt_tokens", "shorten the prompt."),
    Refused("skip_special_tokens", "special tokens are never part of the text.", (True,)),
    Refused("spaces_between_special_tokens", "special tokens are never part of the text.", (True,)),
    Refused("logits_processors", "code of requests is not run.", ([],)),
    Refused("cache_salt", "prefixes are shared among all requests; "
            "start the server with --no-enable-prefix-caching."),
)  # fmt: skip

COMPLETION = Body(
    fields=(
        Field("prompt", PROMPTS, "a text, texts, token ids, or lists of token ids"),
        *_COMMON,
        Field("logprobs", INTEGER, "report log probabilities, with so many alternatives"),
    ),
    required=frozenset({"prompt"}),
    refused=(
        *_REFUSED,
        Refused("echo", "the reply comes without its prompt; put it before yourself.", (False,)),
        Refused("suffix", "text is continued, not filled in.", ("",)),
        Refused("add_special_tokens", "send token ids for a prompt without them.", (True,)),
        Refused("prompt_embeds", "prompts are texts or token ids."),
    ),
    ignored=_IGNORED,
)

CHAT = Body(
    fields=(
        Field("messages", OBJECTS, 'objects with "role" and "content"'),
        *_COMMON,
        Field("max_completion_tokens", INTEGER, "goes before max_tokens"),
        Field("logprobs", BOOLEAN, "report log probabilities"),
        Field("top_logprobs", INTEGER, "alternatives beside each token, with logprobs"),
    ),
    required=frozenset({"messages"}),
    refused=(
        *_REFUSED,
        Refused("tools", _TOOLS, ([],)),
        Refused("tool_choice", _TOOLS, ("none", "auto")),
        Refused("functions", _TOOLS, ([],)),
        Refused("function_call", _TOOLS, ("none", "auto")),
        Refused("modalities", "replies are text.", (["text"],)),
        Refused("audio", "replies are text."),
        Refused("prediction", "start the engine with speculative decoding instead."),
        Refused("web_search_options", "nothing is looked up."),
        Refused("documents", "put them into a message.", ([],)),
        Refused("echo", "the reply comes without its prompt.", (False,)),
        Refused("add_generation_prompt", "the reply is the assistant's next message.", (True,)),
        Refused("continue_final_message", "send the prompt to /v1/completions.", (False,)),
        Refused("chat_template", "the model's own is used."),
        Refused("chat_template_kwargs", "the model's own template is used as it is.", ({},)),
        Refused("add_special_tokens", "the chat template writes them.", (False,)),
    ),
    ignored=_IGNORED,
)

TOKENIZE = Body(
    fields=(
        Field("model", TEXT),
        Field("prompt", TEXT, "a text, or give messages"),
        Field("messages", OBJECTS, "for the chat template"),
        Field("add_special_tokens", BOOLEAN, "those before a prompt; default true"),
        Field("return_token_strs", BOOLEAN, "report each token as text"),
    ),
    refused=(
        Refused("add_generation_prompt", "the reply is the assistant's next message.", (True,)),
        Refused("continue_final_message", "send the prompt as text.", (False,)),
        Refused("chat_template", "the model's own is used."),
        Refused("chat_template_kwargs", "the model's own template is used as it is.", ({},)),
        Refused("tools", _TOOLS, ([],)),
    ),
)

DETOKENIZE = Body(
    fields=(Field("model", TEXT), Field("tokens", TOKEN_IDS)), required=frozenset({"tokens"})
)
