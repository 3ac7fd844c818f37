"""A Phasewise model behind lm-eval's interface, with the answers of lm-eval's `HFLM` for the exported folder. Importing it takes seconds.

Texts of a batch are generated together, with cached keys and values. The contexts of a batch end at the same slot and are read in chunks:
each size of cache needs only two compiled programs. Shape letters: r rows, t slots, v vocab, e end tokens.
"""

import hashlib
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens
from phasewise.tasks.evaluation.scoring import Window, score_windows
from phasewise.trainer.base.errors import ConfigError, DataError, EvaluationError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.decoder import project
from phasewise.trainer.model.decoding import Cache, empty_cache, extend
from phasewise.trainer.model.params import Params
from phasewise.trainer.sharding import named_sharding, on_mesh, parts_here, state_shardings

DEFAULT_MAX_NEW_TOKENS = 256  # the default of lm-eval's models
MAX_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Synonyms in lm-eval's order: the first setting that is present counts."""
KNOWN = {"until", "do_sample", "temperature", "top_k", "top_p", *MAX_NEW_TOKENS}
SHOWN_CHARACTERS = 60
CHUNK_TOKENS = 128  # tokens of a context that are read in one step
STEPS_AT_ONCE = 16  # tokens between two checks for stop strings
CACHE_SLOTS, MAX_ROWS = 36_864, 32  # limits of a batch on each data-parallel part: slots of all rows together, and rows
SHORT_SHARE = 4  # texts of at most `seq_len / SHORT_SHARE` tokens get a smaller cache and larger batches


class Sampling(NamedTuple):
    """Sampling settings. Temperature 0 is greedy, `top_k` 0 and `top_p` 1 are off."""

    temperature: Any = 0.0
    top_k: Any = 0
    top_p: Any = 1.0


class Generation(NamedTuple):
    """The `generation_kwargs` of a benchmark."""

    stops: tuple[str, ...]
    max_new_tokens: int
    sampling: Sampling


class Prompt(NamedTuple):
    """Context tokens, and the number of earlier requests with the same text."""

    tokens: Sequence[int]
    repeat: int


class Growing(NamedTuple):
    """A batch between two checks: `z` has the logits of each next token, `step` counts the new tokens of a row."""

    cache: Cache
    z: Float[Array, "r v"]
    step: Int[Array, ""]


class Grown(NamedTuple):
    """The new tokens of a row before its end token. `finite` is False if any logits were not finite."""

    tokens: list[int]
    finite: bool


def read_generation(settings: Mapping[str, Any]) -> Generation:
    """Read `generation_kwargs`, greedy by default. Unknown settings raise a ConfigError because they change answers."""
    if unknown := sorted(settings.keys() - KNOWN):
        raise ConfigError(
            f"generation_kwargs must be of {', '.join(sorted(KNOWN))}, found {', '.join(unknown)}: remove it from the benchmark."
        )
    until = settings.get("until") or ()
    stops = (until,) if isinstance(until, str) else tuple(until)
    max_new_tokens = int(next((settings[name] for name in MAX_NEW_TOKENS if settings.get(name) is not None), DEFAULT_MAX_NEW_TOKENS))
    if max_new_tokens < 1:
        raise ConfigError(f"max_gen_toks: expected one new token at least, found {max_new_tokens}: correct the generation_kwargs.")
    do_sample, temperature = settings.get("do_sample"), float(settings.get("temperature") or 0.0)
    if do_sample is False:
        temperature = 0.0
    elif do_sample and not temperature:
        temperature = 1.0
    sampling = Sampling(temperature, int(settings.get("top_k") or 0), float(settings.get("top_p") or 1.0))
    if sampling.temperature < 0 or sampling.top_k < 0 or not 0 < sampling.top_p <= 1:
        raise ConfigError(
            f"sampling needs a temperature of 0 or more, a top_k of 0 or more and a top_p above 0 and up to 1, found {dict(settings)}: "
            "correct the benchmark's generation_kwargs."
        )
    return Generation(tuple(stop for stop in stops if stop), max_new_tokens, sampling)


def before_first(text: str, stops: tuple[str, ...]) -> str:
    """Cut `text` at the first occurrence of any stop string."""
    return text[: min((found for stop in stops if (found := text.find(stop)) >= 0), default=len(text))]


def check_finite(value: float, number: int, strings: Sequence[str]) -> float:
    """Return a finite value or raise an EvaluationError with the request's name. lm-eval would score NaN silently."""
    if not math.isfinite(value):
        raise EvaluationError(
            f"a model must answer every request with a finite number, found {value} for {name_request(number, strings)}. "
            "Its weights have diverged, or its checkpoint is damaged: evaluate an earlier one."
        )
    return value


def name_request(number: int, strings: Sequence[str]) -> str:
    """Name a request by its number and the end of each of its texts."""
    ends = (text if len(text) <= SHOWN_CHARACTERS else f"…{text[-SHOWN_CHARACTERS:]}" for text in strings)
    return f"request {number} ({' → '.join(map(repr, ends))})"


class JaxLanguageModel(TemplateLM):
    """Answers are finite, in the order of the requests, and independent of batches. All devices of `mesh` work as one lm-eval process.

    Long contexts lose their start, as in `HFLM`: `num_cut_contexts` of `num_contexts` were cut. `ends` are end tokens in addition to
    `special.end`. Without `begins_texts`, a text has no BOS token. A sample depends only on `seed`, the text, and earlier equal requests.
    """

    def __init__(
        self, *, params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens,
        ends: Iterable[int] = (), begins_texts: bool = True, seed: int = 0, mesh: jax.sharding.Mesh | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.params = jax.device_put(params, None if mesh is None else state_shardings(params, config, mesh))
        self.config = config
        self.trained_length = config.seq_len
        self.tokenizer = tokenizer
        self.begin_of_text, self.end_of_text = special.before, special.after
        self.ends = tuple(sorted({self.end_of_text, *ends}))
        self.has_begin = special.begin is not None
        self.begins_texts = begins_texts and self.has_begin
        self.seed = seed
        self.mesh = mesh
        self.num_contexts = 0
        self.num_cut_contexts = 0

    @property
    def eot_token_id(self) -> int:
        """End-of-document token."""
        return self.end_of_text

    @property
    def prefix_token_id(self) -> int:
        """Token before an empty context."""
        return self.begin_of_text

    @property
    def max_length(self) -> int:
        """Context length in tokens."""
        return self.config.seq_len

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in lm-eval's cache of requests."""
        return f"phasewise-{self.tokenizer.get_vocab_size()}"

    def read_up_to(self, length: int) -> None:
        """Extend the context length beyond the trained length. The weights don't depend on it."""
        if length <= self.config.seq_len:
            raise ConfigError(
                f"--context must be more than the {self.config.seq_len:,} tokens that the model reads, found {length:,}: leave it out."
            )
        self.config = self.config.but(seq_len=length)

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Reject lm-eval's `use_cache`: its keys omit the model, so a second model would get the first model's answers."""
        if cache_hook.dbdict is not None:
            raise ConfigError("use_cache of lm-eval must be off, found it on: its keys do not name the model. Phasewise keeps evaluations.")
        super().set_cache_hook(cache_hook)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """Encode with the BOS token first unless `add_special_tokens` is False. A BOS token spelled in the text counts once."""
        begin = self.tokenizer.id_to_token(self.begin_of_text)
        spelled = self.begins_texts and begin is not None and string.startswith(begin)
        ids = self.tokenizer.encode(string.removeprefix(begin) if spelled and begin else string, add_special_tokens=False).ids
        adds = self.begins_texts if add_special_tokens is None else add_special_tokens and self.has_begin
        return [self.begin_of_text, *ids] if spelled or adds else ids

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return (log-likelihood of the continuation, whether greedy generation would write it) for each request."""
        for number, request in enumerate(requests):
            if not request.arguments[1]:
                raise DataError(
                    f"a continuation must have a token, found none in {name_request(number, request.arguments)}: correct the benchmark."
                )
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the log-likelihood of each (context, continuation) pair."""
        requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
        return [score for score, _ in self.loglikelihood(requests)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **ignored: Any
    ) -> list[tuple[float, bool]]:
        windows = self.windows_of(requests)
        scores = score_windows(self.params, self.config, windows, self.mesh)
        return [
            (check_finite(float(found.log_likelihoods.sum(dtype=np.float64)), number, strings), bool(found.greedy.all()))
            for number, ((strings, _, _), found) in enumerate(zip(requests, scores, strict=True))
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Return the log-likelihood of each whole text in lm-eval's windows, as an `HFLM` with `add_bos_token=False`."""
        windows: list[Window] = []
        text_of_window: list[int] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.arguments[0], add_special_tokens=False)
            pairs = get_rolling_token_windows(tokens, self.begin_of_text, max_seq_len=self.config.seq_len, context_len=1)
            for context, predicted in map(make_disjoint_window, pairs):
                windows.append(Window(np.array(context + predicted[:-1], np.int32), np.array(predicted, np.int32)))
                text_of_window.append(number)
        sums = [0.0] * len(requests)
        for number, found in zip(text_of_window, score_windows(self.params, self.config, windows, self.mesh), strict=True):
            sums[number] += float(found.log_likelihoods.sum(dtype=np.float64))
        return [check_finite(value, number, requests[number].arguments) for number, value in enumerate(sums)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Continue each context until a stop string, an end token or `max_gen_toks` tokens."""
        groups: defaultdict[Generation, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[read_generation(request.arguments[1])].append(number)
        answers: dict[int, str] = {}
        for generation, numbers in groups.items():
            room = self.config.seq_len - generation.max_new_tokens
            if room < 1:
                raise ConfigError(
                    f"max_gen_toks must leave room for a context in the model's seq_len of {self.config.seq_len} tokens, found "
                    f"{generation.max_new_tokens} in a benchmark's generation_kwargs: lower it."
                )
            contexts = [requests[number].arguments[0] for number in numbers]
            repeats: Counter[str] = Counter()
            prompts: list[Prompt] = []
            for context in contexts:
                tokens = self.tok_encode(context) or [self.begin_of_text]
                self.num_contexts += 1
                self.num_cut_contexts += len(tokens) > room
                prompts.append(Prompt(tokens[-room:], repeats[context]))
                repeats[context] += 1
            texts = generate(
                self.params, self.config, prompts, max_new_tokens=generation.max_new_tokens, ends=self.ends,
                has_stopped=lambda tokens, stops=generation.stops: before_first(text := self.tokenizer.decode(tokens), stops) != text,
                sampling=generation.sampling, seed=self.seed, mesh=self.mesh,
            )  # fmt: skip
            for number, context, grown in zip(numbers, contexts, texts, strict=True):
                check_finite(0.0 if grown.finite else np.nan, number, [context])
                answers[number] = before_first(self.tokenizer.decode(grown.tokens), generation.stops)
        return [answers[number] for number in range(len(requests))]

    def windows_of(self, requests: Sequence[tuple[Sequence[str], list[int], list[int]]]) -> list[Window]:
        """Return the windows of encoded requests: (context, continuation), and the tokens of both."""
        windows: list[Window] = []
        for number, (strings, context, continuation) in enumerate(requests):
            if not 1 <= len(continuation) <= self.config.seq_len:
                raise DataError(
                    f"a continuation must have a token and fit in the model's seq_len of {self.config.seq_len} tokens, found "
                    f"{len(continuation)} tokens in {name_request(number, strings)}. Use other choices, or score the text with "
                    "loglikelihood_rolling."
                )
            whole = (context or [self.begin_of_text]) + continuation
            kept = whole[-self.config.seq_len - 1 :]
            self.num_contexts += 1
            self.num_cut_contexts += len(kept) < len(whole)
            windows.append(Window(np.array(kept[:-1], np.int32), np.array(continuation, np.int32)))
        return windows


def generate(
    params: Params, config: ModelConfig, prompts: Sequence[Prompt], *, max_new_tokens: int, ends: Collection[int],
    has_stopped: Callable[[list[int]], bool], sampling: Sampling, seed: int, mesh: jax.sharding.Mesh | None,
) -> list[Grown]:  # fmt: skip
    """Generate at most `max_new_tokens` tokens for each prompt, in order. A few tokens may follow after `has_stopped` is true."""
    found: dict[int, Grown] = {}
    end_tokens = sorted(ends)
    put: Callable[[np.ndarray], Any] = np.asarray if mesh is None else partial(jax.device_put, device=named_sharding(mesh, "batch"))
    compiling = threading.Lock()  # a call under the lock compiles and starts a program, and does not wait for its results

    def grow(slots: int, num_rows: int, numbers: list[int]) -> None:
        # Spare rows have one token, and are done from the start
        filled = [*(prompts[number] for number in numbers), *[Prompt([0], 0)] * (num_rows - len(numbers))]
        chunks = -(-max(len(prompt.tokens) for prompt in filled) // CHUNK_TOKENS)
        end = chunks * CHUNK_TOKENS
        contexts = np.zeros((num_rows, -(-slots // CHUNK_TOKENS) * CHUNK_TOKENS), np.int32)
        for row, prompt in zip(contexts, filled, strict=True):
            row[end - len(prompt.tokens) : end] = prompt.tokens
        # Only seed and prompt decide a row's random key: the other rows don't change a sample
        digests = [hashlib.sha256(repr((seed, prompt.repeat, list(prompt.tokens))).encode()).digest() for prompt in filled]
        keys = put(np.stack([np.frombuffer(digest[:8], "<u4") for digest in digests]))
        starts = put(np.array([end - len(prompt.tokens) for prompt in filled], np.int32))
        with compiling:
            growing = read(params, put(contexts), starts, np.int32(chunks), config=config, slots=slots, mesh=mesh)
        tokens: list[list[int]] = [[] for _ in numbers]
        finite = np.ones(len(numbers), bool)
        is_done = np.arange(num_rows) >= len(numbers)
        for start in range(0, max_new_tokens, STEPS_AT_ONCE):
            steps = min(STEPS_AT_ONCE, max_new_tokens - start)
            with compiling:
                growing, *outputs = write(
                    params, growing, put(is_done), np.int32(steps), np.array(end_tokens, np.int32), sampling, keys, config=config, mesh=mesh
                )
            written, is_finite = map(np.asarray, outputs)
            for row in np.flatnonzero(~is_done):
                tokens[row] += written[row, :steps].tolist()
                finite[row] &= is_finite[row]
                is_done[row] = any(token in tokens[row] for token in end_tokens) or has_stopped(tokens[row]) or not finite[row]
            if is_done.all():
                break
        for number, of_row, all_finite in zip(numbers, tokens, finite, strict=True):
            length = next((index for index, token in enumerate(of_row) if token in end_tokens), len(of_row))
            found[number] = Grown(of_row[:length], bool(all_finite))

    # Attention to a cache runs on one core of a CPU, so a second batch uses the next core
    with ThreadPoolExecutor(2 if mesh is None and jax.default_backend() == "cpu" else 1) as pool:
        list(pool.map(lambda batch: grow(*batch), _batches(prompts, config.seq_len, max_new_tokens, mesh)))
    return [found[number] for number in range(len(prompts))]


def _batches(
    prompts: Sequence[Prompt], seq_len: int, max_new_tokens: int, mesh: jax.sharding.Mesh | None
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (slots of the cache, rows, numbers of the prompts). Prompts of similar length share a batch, the longest first."""
    sizes = sorted({-(-seq_len // SHORT_SHARE), seq_len})
    by_size: dict[int, list[int]] = {size: [] for size in sizes}
    for number in sorted(range(len(prompts)), key=lambda number: (-len(prompts[number].tokens), prompts[number].tokens, number)):
        by_size[next(size for size in sizes if len(prompts[number].tokens) + max_new_tokens <= size)].append(number)
    for size, numbers in by_size.items():
        slots = size + CHUNK_TOKENS  # a context may start anywhere in its first chunk
        rows = min(MAX_ROWS, max(1, CACHE_SLOTS // slots)) * parts_here(mesh)[1]
        for start in range(0, len(numbers), rows):
            yield slots, rows, numbers[start : start + rows]


@partial(jax.jit, static_argnames=("config", "slots", "mesh"))
def read(
    params: Params, tokens: Int[Array, "r t"], starts: Int[Array, " r"], chunks: Int[Array, ""],
    *, config: ModelConfig, slots: int, mesh: jax.sharding.Mesh | None,
) -> Growing:  # fmt: skip
    """Read the contexts, which end at the end of chunk `chunks`."""

    def read_all(params: Params, tokens: Array, starts: Array, chunks: Array) -> Growing:
        def read_chunk(number: Array, so_far: tuple[Cache, Array]) -> tuple[Cache, Array]:
            chunk = jax.lax.dynamic_slice_in_dim(tokens, number * CHUNK_TOKENS, CHUNK_TOKENS, axis=1)
            hidden, cache = extend(params, chunk, config, so_far[0])
            return cache, hidden[:, -1:]

        nothing = jnp.zeros((tokens.shape[0], 1, config.d_model), config.compute_dtype)
        cache, last = jax.lax.fori_loop(0, chunks, read_chunk, (empty_cache(config, starts, slots), nothing))
        return Growing(cache, project(params, last, config)[:, 0], jnp.int32(0))

    return on_mesh(read_all, mesh)(params, tokens, starts, chunks)


@partial(jax.jit, static_argnames=("config", "mesh"), donate_argnames="growing")
def write(
    params: Params, growing: Growing, is_done: Bool[Array, " r"], steps: Int[Array, ""], ends: Int[Array, " e"],
    sampling: Sampling, keys: UInt[Array, "r two"], *, config: ModelConfig, mesh: jax.sharding.Mesh | None,
) -> tuple[Growing, Int[Array, "r t"], Bool[Array, " r"]]:  # fmt: skip
    """Write up to `steps` tokens of each row, and report which rows had only finite logits."""

    def write_all(params: Params, growing: Growing, is_done: Array) -> tuple[Growing, Array, Array]:
        def write_one(state: tuple[Array, Growing, Array, Array, Array]) -> tuple[Array, Growing, Array, Array, Array]:
            number, (cache, z, step), is_done, written, finite = state

            # Filter by `top_k`, then by `top_p` of the remaining probability (Holtzman et al., 2020)
            def draw() -> Array:
                scaled = z / sampling.temperature
                ranked = -jnp.sort(-scaled, axis=-1)
                is_kept = (jnp.arange(scaled.shape[-1]) < sampling.top_k) | (sampling.top_k <= 0)
                probabilities = jax.nn.softmax(jnp.where(is_kept, ranked, -jnp.inf), axis=-1)
                before = jnp.cumsum(probabilities, axis=-1) - probabilities
                count = jnp.sum(is_kept & (before < sampling.top_p), axis=-1, keepdims=True)
                least = jnp.take_along_axis(ranked, jnp.maximum(count - 1, 0), axis=-1)
                keys_now = jax.vmap(lambda key: jax.random.fold_in(jax.random.wrap_key_data(key), step))(keys)
                return jax.vmap(jax.random.categorical)(keys_now, jnp.where(scaled >= least, scaled, -jnp.inf)).astype(jnp.int32)

            chosen = jax.lax.cond(sampling.temperature > 0, draw, lambda: jnp.argmax(z, axis=-1).astype(jnp.int32))
            finite &= is_done | jnp.isfinite(jnp.max(z, axis=-1))
            is_done |= jnp.isin(chosen, ends)
            hidden, cache = extend(params, chosen[:, None], config, cache)
            written = jax.lax.dynamic_update_slice_in_dim(written, chosen[:, None], number, axis=1)
            return number + 1, Growing(cache, project(params, hidden, config)[:, 0], step + 1), is_done, written, finite

        rows = is_done.shape[0]
        nothing = jnp.full((rows, STEPS_AT_ONCE), ends[0], jnp.int32)
        state = jnp.int32(0), growing, is_done, nothing, jnp.ones(rows, jnp.bool_)
        _, growing, _, written, finite = jax.lax.while_loop(lambda state: (state[0] < steps) & ~jnp.all(state[2]), write_one, state)
        return growing, written, finite

    growing, *outputs = on_mesh(write_all, mesh)(params, growing, is_done)
    written, finite = outputs if mesh is None else (jax.lax.with_sharding_constraint(part, named_sharding(mesh)) for part in outputs)
    return growing, written, finite
