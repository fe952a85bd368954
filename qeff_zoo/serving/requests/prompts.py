# SPDX-License-Identifier: Apache-2.0
"""Conversion of request bodies to requests of the runtime, one for each choice.

Each long-running part is a `Step`, which a server runs in its client's turn.
"""

import base64
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from qeff_zoo.media.fetching import DATA, fetch_media, is_url
from qeff_zoo.media.image_options import OF_VIDEOS, ImageInput, VideoInput, source_of
from qeff_zoo.media.images import ImageLimits
from qeff_zoo.media.steps import Steps, finished
from qeff_zoo.media.videos import is_compressed
from qeff_zoo.runtime import Grammar, Request, Sampling, TextGenerationSession
from qeff_zoo.runtime.text.chat_template import USUAL_CHAT, ChatOptions, Message
from qeff_zoo.runtime.text.fill_in_middle import middle_prompt
from qeff_zoo.serving.answers.chats import Chat
from qeff_zoo.serving.answers.large import check_logprobs
from qeff_zoo.serving.errors import ApiError, blaming, brief, unknown_parameter
from qeff_zoo.serving.queues.media import Preparation, Step, at_once
from qeff_zoo.serving.requests.media_sessions import (
    ImageSession,
    MediaSession,
    SingleImageSession,
)
from qeff_zoo.serving.requests.price import BOUNDS, Bounds, Price, check_context, price
from qeff_zoo.serving.requests.rendering import by_template, refuse_files, require_template
from qeff_zoo.serving.requests.schemas import ChatRequest, CompletionRequest, listed
from qeff_zoo.serving.requests.tools import ChatFormats, OutputPlan, chat_options, output_plan
from qeff_zoo.terminal.sanitize import shortened

#: Limits of a fetched image or video.
FETCHED = ImageLimits(file_bytes=20_000_000, seconds=10.0)
MOST_FETCHED = 16
#: Parameters that constrain the output, and functions that return those which make their grammars.
_FORMS: Mapping[str, Callable[[Any], partial[Grammar] | None]] = MappingProxyType(
    {
        "response_format": lambda given: given.form,
        "structured_outputs": lambda given: given.form,
        "grammar": lambda given: partial(Grammar.context_free, given),
        "json_schema": lambda given: partial(Grammar.json, given),
    }
)
_QUICK_TEXT = 4096  # characters of a grammar that is converted in a fraction of a second
#: Bytes of a conversation that is rendered and tokenized in a fraction of a second.
_QUICK_CHAT = 1 << 16
QUICK_IMAGE = 1 << 25  # bytes of a decoded image
#: Seconds of CPU time in a worker. A grammar is compiled again in the server, in at most that time.
_SECONDS_OF_GRAMMAR, SECONDS_OF_TEXT, SECONDS_OF_IMAGE = 5, 20, 30
#: Memory of a compiled grammar; steps of small files do not wait for its compilation.
_OF_COMPILED = QUICK_IMAGE + 1
_BREAKS = str.maketrans("", "", "\r\n\t ")
_CODES = {"image": "invalid_image_url", "video": "invalid_video_url"}


def chat_requests(
    session: TextGenerationSession,
    body: ChatRequest,
    adapter: str | None = None,
    bounds: Bounds = BOUNDS,
    hosts: Collection[str] = (),
) -> list[Request]:
    """Return a request for each choice of a chat's next message, without other clients; see `prepare_chat`."""
    return [*at_once(prepare_chat(session, body, adapter, bounds, hosts)).requests]


def prepare_chat(
    session: TextGenerationSession,
    body: ChatRequest,
    adapter: str | None,
    bounds: Bounds,
    hosts: Collection[str],
    formats: ChatFormats | None = None,
) -> Preparation[Chat]:
    """Prepare a request for each choice of a chat's next message.

    Args:
        session: Session of the model.
        body: Body of the client's request.
        adapter: Name of a loaded adapter.
        bounds: Limits of the server.
        hosts: Hosts from which images and videos are fetched; empty for those in the request alone.
        formats: Formats of the model's chats; None for those of its templates.

    Raises:
        ApiError: The request cannot be served.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            400,
            f"Parameter 'top_logprobs' is {body.top_logprobs}, and 'logprobs' is not true; expected both or neither. "
            "Change one.",
            param="top_logprobs",
            code="invalid_value",
        )
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    formats = formats or ChatFormats()
    if session.describes_images:
        image, begun = yield from _shown(session, body, hosts)
        with blaming("messages"):
            cost = price(session, body, {"images": [image]}, bounds)
        form = yield from _form(session, body, formats)
        (nbytes,) = cost.nbytes["images"]
        if nbytes > QUICK_IMAGE:
            apart = cast("SingleImageSession", session).preparation(image)
            with blaming("messages"):
                image = yield Step(apart, nbytes, apart=SECONDS_OF_IMAGE)
            nbytes = 0
        work = partial(
            _choices, session, body, image, limit, logprobs, "messages", adapter, begun, form=form
        )
        found: list[Request] = yield Step(work, nbytes)
        return Chat(requests=found)
    require_template(session, body.model, "a prompt as plain text. Use /v1/completions")
    assert session.chat_template is not None
    brought = yield from _brought(session, body, hosts)
    with blaming("messages"):
        cost = price(session, body, brought, bounds)
    messages = [message.as_template_input() for message in body.messages]
    options = chat_options(body)
    with blaming("chat_template"):
        session.chat_template.source(options)
    param = "documents" if body.documents else "messages"
    with blaming(param):
        parts = _parts(session, body, messages, options)
    documents, tokens = parts or (
        [],
        (yield from by_template(partial(_chat_tokens, session, messages), options, param)),
    )
    tokens = _truncated(session, body, tokens, limit, whole=bool(brought or documents))
    length = 1 if session.sources else sum(map(len, [*documents, tokens]))
    check_context(session, length + cost.placeholders, limit, param)
    if brought:
        brought = yield from _encoded(session, brought, cost, length, limit)
    form = yield from _form(session, body, formats)
    plan = output_plan(session, body, form, tokens, formats, options)
    if plan.grammar is not None:
        with blaming("tools" if body.offered else "messages", "invalid_schema"):
            yield from _compiled(session, plan.grammar)
    work = partial(
        _choices,
        session,
        body,
        tokens,
        limit,
        logprobs,
        "messages",
        adapter,
        form=plan.grammar,
        plan=plan,
    )
    if "videos" not in brought:
        found = work(brought, documents)
    else:
        reader = cast("ImageSession", session)
        most = bounds.decoded_bytes
        brought["videos"] = yield from _prepared_apart(reader, brought["videos"], cost, most)
        counted = length + cost.placeholders - sum(cost.tokens["videos"])
        of_videos = _of_videos(session, work, brought, documents, counted, limit, most)
        found = yield Step(of_videos, sum(cost.nbytes["videos"]))
    return plan.chat(requests=found)


def _encoded(
    session: TextGenerationSession,
    brought: Mapping[str, Sequence[Any]],
    cost: Price,
    length: int,
    limit: int | None,
) -> Preparation[dict[str, Sequence[Any]]]:
    """Decode and encode images and recordings one by one; return videos unchanged.

    Args:
        session: Session of the model.
        brought: Files by argument.
        cost: Cost of the request.
        length: Number of tokens of its prompt, with one placeholder for each file.
        limit: Maximum number of generated tokens.
    """
    encoded, reads = dict(brought), cast("MediaSession", session)
    left = cost.placeholders
    for argument in ("images", "audio"):
        works = reads.encoding(argument, brought[argument]) if argument in brought else []
        encoded[argument] = found = []
        for place, work in enumerate(works):
            nbytes = cost.nbytes[argument][place]
            with blaming("messages"):
                if argument == "images" and nbytes > QUICK_IMAGE:
                    apart = cast("ImageSession", session).preparation(
                        brought[argument][place], len(works)
                    )
                    prepared = yield Step(apart, nbytes, apart=SECONDS_OF_IMAGE)
                    (work,) = reads.encoding(argument, [prepared])
                found.append((yield Step(work, nbytes)))
            left += len(reads.run_of(found[-1])) - cost.tokens[argument][place]
            check_context(session, length + left, limit, "messages")
    return {argument: files for argument, files in encoded.items() if files}


def _prepared_apart(
    session: ImageSession, videos: Sequence[Any], cost: Price, most: int
) -> Preparation[list[Any]]:
    """Return videos, of which workers have prepared those of large images.

    Args:
        session: Session of the model.
        videos: The videos.
        cost: Cost of the request.
        most: Maximum memory of all prepared videos, in bytes.
    """
    found = list[Any]()
    for one, nbytes in zip(videos, cost.nbytes["videos"], strict=True):
        if nbytes <= QUICK_IMAGE or is_compressed(source_of(one)):
            found.append(one)
            continue
        with blaming("messages"):
            work = session.video_preparation(one)
            arrays = yield Step(work, nbytes, apart=SECONDS_OF_IMAGE)
            found.append(finished(session.preparing_video(one, arrays)))
            _check_prepared([one for one in found if isinstance(one, Mapping)], most)
    return found


def _of_videos(
    session: TextGenerationSession,
    work: Callable[..., list[Request]],
    brought: Mapping[str, Sequence[Any]],
    documents: Sequence[Sequence[int]],
    counted: int,
    limit: int | None,
    most: int,
) -> Steps[list[Request]]:
    """Decode videos, and make requests of them.

    Args:
        session: Session of the model.
        work: A function that makes requests of what messages have beside text, and of documents.
        brought: The files, by argument.
        documents: Tokens of each.
        counted: Minimum number of tokens of the prompt without those of videos.
        limit: Maximum number of generated tokens.
        most: Maximum memory of all prepared videos, in bytes.
    """
    videos, reader = [], cast("ImageSession", session)
    with blaming("messages"):
        for one in brought["videos"]:
            videos.append((yield from reader.preparing_video(one)))
            _check_prepared(videos, most)
            counted += reader.video_rows(videos[-1])
            check_context(session, counted, limit, "messages")
    return work({**brought, "videos": videos}, documents)


def _check_prepared(videos: Sequence[Mapping[str, Any]], most: int) -> None:
    """Refuse videos whose frames have too many pixels together once they are resized; no frame is kept as decoded.

    Raises:
        ApiError: They take more memory than a request may have.
    """
    nbytes = sum(np.asarray(array).nbytes for video in videos for array in video.values())
    if nbytes > most:
        raise ApiError(
            400,
            f"The {len(videos)} first videos of the request take {nbytes:,} bytes after their frames are resized; "
            f"expected at most {most:,} for all of its videos. Send fewer, shorter or smaller ones.",
            param="messages",
            code="invalid_value",
        )


def _shown(
    session: TextGenerationSession, body: ChatRequest, hosts: Collection[str]
) -> Preparation[tuple[Any, dict[str, Any]]]:
    """Return the image of a chat for an image-to-text model, and the prompt; refuse any other content."""
    for name in ("documents", "tools", "mm_processor_kwargs"):
        if value := getattr(body, name):
            raise unknown_parameter(name, value)
    (message, *others), extra = body.messages, body.messages[0].model_extra or {}
    found = {
        f"role {brief(message.role)}": message.role != "user",
        f"{len(body.messages):,} messages": bool(others),
        f"{len(message.images):,} images": len(message.images) != 1,
        "videos": bool(message.videos),
        "recordings": bool(message.recordings),
        **{brief(name): value is not None for name, value in extra.items()},
    }
    if wrong := [name for name, is_there in found.items() if is_there]:
        raise ApiError(
            400,
            f"Model {body.model!r} writes of one image, and the request has {', '.join(wrong)}; expected one message "
            "of role 'user' with one part of type image_url, and perhaps text. Send each image by itself.",
            param="messages",
            code="invalid_value",
        )
    (image,) = yield from read_media([("image", url) for url in message.images], hosts)
    return image, {"prompt": message.text or None}


def _brought(
    session: TextGenerationSession, body: ChatRequest, hosts: Collection[str]
) -> Preparation[dict[str, Sequence[Any]]]:
    """Return the files of images, videos and recordings in the messages."""
    urls = [("image", url) for message in body.messages for url in message.images]
    videos = [("video", url) for message in body.messages for url in message.videos]
    recordings = [one for message in body.messages for one in message.recordings]
    refuse_files(body.model, body.messages, session.takes)
    if videos:
        with blaming("messages"):
            cast("ImageSession", session).check_reads_videos()
    of_images, of_videos = _media_options(session, body)
    media = yield from read_media([*urls, *videos], hosts)
    shown, played = media[: len(urls)], media[len(urls) :]
    details = [detail for message in body.messages for detail in message.details]
    for place, detail in enumerate(details):
        if options := {**of_images, **({"detail": detail} if detail == "low" else {})}:
            shown[place] = ImageInput(shown[place], options)
    if of_videos:
        played = [VideoInput(one, of_videos) for one in played]
    brought = {"images": shown, "videos": played, "audio": [*map(_recording, recordings)]}
    return {name: files for name, files in brought.items() if files}


def _media_options(
    session: TextGenerationSession, body: ChatRequest
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of images and of videos in a request, which vLLM's API has in one object, or apart."""
    given = dict(body.mm_processor_kwargs or {})
    if given and "images" not in session.takes:
        raise unknown_parameter("mm_processor_kwargs", given)
    parts = [given.pop(name, None) or {} for name in ("images_kwargs", "videos_kwargs")]
    for part in parts:
        if not isinstance(part, dict):
            raise ApiError(
                400,
                f"Parameter 'mm_processor_kwargs' has {brief(part)}; expected an object of options. Change it.",
                param="mm_processor_kwargs",
                code="invalid_value",
            )
    images, videos = ({**part} for part in parts)
    for name, value in given.items():
        (videos if name in OF_VIDEOS else images)[name] = value
    return images, videos


def read_media(urls: Sequence[tuple[str, str]], hosts: Collection[str]) -> Preparation[list[Any]]:
    """Return the files of images and videos in messages; for a video in single frames, a list of its images.

    Args:
        urls: Kind of each file, "image" or "video", and its URL: a `data:` URL, or a web URL.
        hosts: Hosts that the operator allows web URLs of.

    Raises:
        ApiError: A file cannot be read, or must not be fetched.
    """
    fetched = [(noun, url) for noun, url in urls if hosts and is_url(url)]
    if len(fetched) > MOST_FETCHED:
        raise ApiError(
            400,
            f"The messages have {len(fetched)} {fetched[0][0]}s to be fetched; expected at most {MOST_FETCHED}. Send "
            f"them as {DATA[fetched[0][0]]}",
            param="messages",
            code=_CODES[fetched[0][0]],
        )
    found: list[Any] = []
    for noun, url in urls:
        with blaming("messages", _CODES[noun]):
            if (noun, url) in fetched:
                fetch = partial(fetch_media, url, FETCHED, hosts=hosts, noun=noun)
                found.append((yield Step(fetch, fetches=True)))
            else:
                found.append(_sent(url, noun))
    return found


def _sent(url: str, noun: str) -> bytes | list[bytes]:
    """Return the image or video of a `data:` URL. `data:video/jpeg` has frames, as in vLLM's API."""
    head, comma, content = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise ApiError(
            400,
            f"Cannot read the {noun} at {shortened(url)!r}; expected {DATA[noun]} with the {noun} itself, since this "
            "server does not fetch it. Send it so.",
            param="messages",
            code=_CODES[noun],
        )
    code = "invalid_base64_image" if noun == "image" else "invalid_base64_video"
    if noun == "video" and head.lower() == "data:video/jpeg;base64":
        return [_decoded(one, "frame", code) for one in content.split(",")]
    return _decoded(content, noun, code)


def _recording(content: str) -> bytes:
    """Return the file of a recording, which some clients send as a `data:` URL."""
    content = content.partition(",")[2] if content.startswith("data:") else content
    return _decoded(content, "recording", "invalid_base64_audio")


def _decoded(content: str, what: str, code: str) -> bytes:
    try:
        # Lines of MIME have 76 characters; some tools wrap what they encode.
        return base64.b64decode(content.translate(_BREAKS), validate=True)
    except ValueError as error:
        raise ApiError(
            400,
            f"Cannot read a {what} of {len(content):,} characters: {error}. Expected base64. Encode it again.",
            param="messages",
            code=code,
        ) from error


def prepare_completion(
    session: TextGenerationSession,
    body: CompletionRequest,
    adapter: str | None,
    bounds: Bounds,
    formats: ChatFormats | None = None,
) -> Preparation[Chat]:
    """Prepare a request for each choice, those of the first prompt first.

    Args:
        session: Session of the model.
        body: Body of the client's request.
        adapter: Name of a loaded adapter.
        bounds: Limits of the server.
        formats: Formats of the server, with options of structured output; None for the defaults.

    Raises:
        ApiError: The request cannot be served.
    """
    price(session, body, bounds=bounds)
    found: list[Request] = []
    names = ("language", "source_language")
    languages = {name: given for name in names if (given := getattr(body, name)) is not None}
    if languages and not session.translates:
        raise unknown_parameter(*next(iter(languages.items())))
    if session.describes_images:
        raise ApiError(
            400,
            f"Model {body.model!r} writes of an image, which a prompt cannot have; expected a chat whose one message "
            "has a part of type image_url. Use /v1/chat/completions.",
            param="prompt",
            code="invalid_value",
        )
    form = yield from _form(session, body, formats or ChatFormats())
    for prompt in listed(body.prompt):
        with blaming("documents" if body.documents else "prompt"):
            parts = _parts(session, body, prompt)
            documents, tokens = parts or ([], (yield from _prompt_tokens(session, body, prompt)))
        tokens = _truncated(session, body, tokens, body.max_tokens, whole=bool(documents))
        length = 1 if session.sources else sum(map(len, [*documents, tokens]))
        check_context(session, length, body.max_tokens, "documents" if documents else "prompt")
        found += _choices(
            session,
            body,
            tokens,
            body.max_tokens,
            body.logprobs,
            "prompt",
            adapter,
            languages,
            documents,
            form,
        )
    return Chat(requests=found)


def _chat_tokens(
    session: TextGenerationSession, messages: Sequence[Message], options: ChatOptions
) -> Preparation[list[int]]:
    """Return the tokens of a conversation; a long one is rendered and tokenized by a worker."""
    work = session.encoding_apart(messages, options)
    if work is None or len(pickle.dumps(work)) <= _QUICK_CHAT:
        return session.encode_chat(messages, options)
    tokens: list[int] = yield Step(work, apart=SECONDS_OF_TEXT)
    return tokens


def _text_tokens(
    session: TextGenerationSession, prompt: str | Sequence[int]
) -> Preparation[list[int]]:
    """Return the tokens of a prompt; a long text is tokenized by a worker."""
    is_long = isinstance(prompt, str) and len(prompt) > _QUICK_CHAT
    work = session.encoding_apart(cast("str", prompt)) if is_long else None
    if work is None:
        return session.encode(prompt)
    tokens: list[int] = yield Step(work, apart=SECONDS_OF_TEXT)
    return tokens


def _prompt_tokens(
    session: TextGenerationSession, body: CompletionRequest, prompt: str | Sequence[int]
) -> Preparation[list[int]]:
    """Return the tokens of a prompt, or those for the text between it and the suffix of the request."""
    if not body.suffix:
        return (yield from _text_tokens(session, prompt))
    tokenizer = session.tokenizer
    found = None
    if tokenizer is not None and isinstance(prompt, str):
        found = middle_prompt(tokenizer, prompt, body.suffix)
    if found is None:
        raise ApiError(
            400,
            "Parameter 'suffix' is given, which requires a prompt as text and a model whose tokenizer has tokens for "
            "fill in the middle; expected both. Leave it out, or use such a model.",
            param="suffix",
            code="unsupported_parameter",
        )
    return found


def _truncated(
    session: TextGenerationSession,
    body: ChatRequest | CompletionRequest,
    tokens: list[int],
    limit: int | None,
    *,
    whole: bool,
) -> list[int]:
    """Return the tokens of a prompt that `truncate_prompt_tokens` keeps.

    Args:
        session: Session of the model.
        body: Body of the request.
        tokens: Tokens of the prompt.
        limit: Maximum number of generated tokens; None for the rest of the context.
        whole: Whether the prompt has files or documents, without which it makes no sense.
    """
    most = body.truncate_prompt_tokens
    if most is None:
        return tokens
    if whole:
        raise unknown_parameter("truncate_prompt_tokens", most)
    if most == -1:
        most = max(session.decoder.sizes.ctx_len - (limit or 1), 1)
    return tokens[:most] if body.truncation_side == "right" else tokens[-most:]


def _parts(
    session: TextGenerationSession,
    body: ChatRequest | CompletionRequest,
    prompt: Any,
    options: ChatOptions = USUAL_CHAT,
) -> tuple[list[list[int]], list[int]] | None:
    """Return the tokens of documents and of what comes after them; None where there are no documents."""
    texts: list[Any] = [one for one in body.documents if not isinstance(one, dict)]
    if not texts:
        return None
    *documents, tokens = session.encode_parts(prompt, texts, options)
    return documents, tokens


def _choices(
    session: TextGenerationSession,
    body: ChatRequest | CompletionRequest,
    given: Any,
    limit: int | None,
    logprobs: int | None,
    param: str,
    adapter: str | None,
    more: Mapping[str, Any],
    documents: Sequence[Sequence[int]] = (),
    form: Grammar | None = None,
    plan: OutputPlan | None = None,
) -> list[Request]:
    """Return `n` requests for one prompt or image; each has its own seed, so that their texts differ."""
    param = "documents" if documents else param
    more = {**more, "documents": documents} if documents else more
    more = {**more, "thinking": plan.thinking} if plan and plan.thinking else more
    with blaming(param):
        sampling = _sampling(session, body, logprobs)
        request = session.request(
            given,
            generation_len=limit,
            sampling=sampling,
            stop=body.stop,
            stop_token_ids=body.stop_token_ids,
            include_stop=body.include_stop_str_in_output,
            ignore_eos=body.ignore_eos,
            **more,
            adapter=adapter,
            grammar=form,
        )
    request = replace(request, shown=plan.shown) if plan else request
    check_logprobs(_logprobs_of(request) * body.n, "n" if body.n > 1 else "logprobs")
    seeds = [None if body.seed is None else body.seed + number for number in range(body.n)]
    return [replace(request, sampling=replace(request.sampling, seed=seed)) for seed in seeds]


def _logprobs_of(request: Request) -> int:
    """Return the maximum number of log-probabilities of a choice, those of its prompt and of alternatives included."""
    of_tokens, of_prompt = request.sampling.logprobs, request.sampling.prompt_logprobs
    generated = 0 if of_tokens is None else (1 + of_tokens) * (request.limit - len(request.scored))
    return generated + (0 if of_prompt is None else (1 + of_prompt) * request.prompt_tokens)


def _sampling(
    session: TextGenerationSession, body: ChatRequest | CompletionRequest, logprobs: int | None
) -> Sampling:
    """Return sampling parameters; those that the request lacks are the model's own, else OpenAI's defaults."""
    own = (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "bad_words",
        "min_tokens",
        "typical_p",
    )
    given = {name: getattr(body, name) for name in own if name in body.model_fields_set}
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    if "bad_words" in given:
        given["bad_words"] = tuple(given["bad_words"])
    return Sampling(
        **{"temperature": session.settings.temperature, **given},
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=body.seed,
        logprobs=logprobs,
        prompt_logprobs=_prompt_logprobs(body),
        logit_bias={int(token): value for token, value in body.logit_bias.items()},
        allowed_token_ids=body.allowed_token_ids,
        **body.llama_samplers,
    )


def _prompt_logprobs(body: ChatRequest | CompletionRequest) -> int | None:
    """Return the number of alternatives of each token of the prompt; None for no log-probabilities of the prompt."""
    counts = [body.prompt_logprobs]
    if isinstance(body, CompletionRequest) and body.echo:
        counts.append(body.logprobs if body.max_tokens != 0 or body.logprobs is not None else 0)
    known = [count for count in counts if count is not None]
    if known and body.stream:
        raise ApiError(
            400,
            "Log-probabilities of a prompt are requested in a stream; expected a request without 'stream'. Leave one "
            "of them out.",
            param="stream",
            code="invalid_value",
        )
    return max(known, default=None)


def _form(
    session: TextGenerationSession, body: ChatRequest | CompletionRequest, formats: ChatFormats
) -> Preparation[Grammar | None]:
    """Return the compiled grammar of the structured output; None for free text."""
    given = {name: value for name in _FORMS if (value := getattr(body, name)) not in (None, "")}
    if len(given) > 1:
        first, second, *_ = given
        raise ApiError(
            400,
            f"Both {first!r} and {second!r} give the answer a form; expected one. Leave one out.",
            param=second,
            code="invalid_value",
        )
    for name, value in given.items():
        with blaming(name, "invalid_schema"):
            make = _FORMS[name](value)
            if make is None:
                return None
            (text,) = make.args
            is_long = isinstance(text, str) and len(text) > _QUICK_TEXT
            found: Grammar = (yield Step(make, apart=_SECONDS_OF_GRAMMAR)) if is_long else make()
            found = found.closed() if formats.closes_objects else found
            yield from _compiled(session, found)
            return found
    return None


def _compiled(session: TextGenerationSession, grammar: Grammar) -> Preparation[None]:
    """Compile a grammar: one that may take long at first in a worker, which can be stopped."""
    guides = session.guides
    if guides.is_quick(grammar):
        guides.check(grammar)
        return
    yield Step(guides.trial(grammar), apart=_SECONDS_OF_GRAMMAR)
    yield Step(partial(guides.check, grammar), _OF_COMPILED)
